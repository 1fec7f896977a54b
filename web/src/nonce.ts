export const nonce = document.querySelector<HTMLMetaElement>("meta[name=nonce]")?.content ?? "";
