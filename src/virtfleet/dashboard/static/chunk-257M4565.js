var e=document.querySelector("meta[name=nonce]")?.content??"";export{e as a};
