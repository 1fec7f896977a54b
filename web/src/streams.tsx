// A guest's serial console and its screen.
import RFB from "@novnc/novnc";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";

import { useEffect, useRef, useState } from "preact/hooks";
import { streamUrl } from "./api";
import { nonce } from "./nonce";

// xterm.js puts its colours into a style element; our policy takes those with the page's nonce only.
function withNonce<T>(work: () => T): T {
  const plain = document.createElement;
  document.createElement = function (this: Document, name: string, options?: ElementCreationOptions) {
    const made = plain.call(document, name, options);
    if (name === "style") made.setAttribute("nonce", nonce);
    return made;
  } as typeof document.createElement;
  try { return work(); } finally { document.createElement = plain; }
}
const PROTOCOL = "plain.kubevirt.io";
interface Seen { namespace: string; name: string; uid: string }

export function Console({ namespace, name, uid }: Seen) {
  const box = useRef<HTMLDivElement>(null);
  const [state, setState] = useState("connecting …");
  const [again, retry] = useState(0);
  useEffect(() => {
    const terminal = new Terminal({ fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, monospace", fontSize: 13, cursorBlink: true, scrollback: 5000,
      theme: { background: "#11181a", foreground: "#d7e0df", cursor: "#e0a84e" } });
    const fit = new FitAddon();
    terminal.loadAddon(fit);
    withNonce(() => terminal.open(box.current!));
    const fitted = () => { try { fit.fit(); } catch { /* not in sight */ } };
    fitted();
    const observer = new ResizeObserver(fitted);
    observer.observe(box.current!);
    const socket = new WebSocket(streamUrl(namespace, name, "console"), [PROTOCOL]);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => { setState("connected"); terminal.focus(); };
    socket.onmessage = (event) => terminal.write(typeof event.data === "string" ? event.data : new Uint8Array(event.data));
    socket.onclose = (event) => setState(event.reason || "The console has ended.");
    const encoder = new TextEncoder();
    terminal.onData((data) => socket.readyState === WebSocket.OPEN && socket.send(encoder.encode(data)));
    // For tests and for screen readers' users: what is on it, as text.
    (box.current as any).shown = () => { const b = terminal.buffer.active; return Array.from({ length: b.length }, (_, i) => b.getLine(i)?.translateToString(true) ?? "").join("\n"); };
    return () => { observer.disconnect(); socket.onclose = null; socket.close(); terminal.dispose(); };
  }, [namespace, name, uid, again]);
  return (
    <section class="stream">
      <div class="row"><span class="hint" data-test="console-state">{state}</span>{state !== "connected" && state !== "connecting …" && <button onClick={() => { setState("connecting …"); retry(again + 1); }}>Connect again</button>}</div>
      <div class="terminal" ref={box} data-test="terminal" />
    </section>
  );
}

export function Screen({ namespace, name, uid }: Seen) {
  const box = useRef<HTMLDivElement>(null), rfb = useRef<any>(null);
  const [state, setState] = useState("connecting …");
  const [again, retry] = useState(0);
  useEffect(() => {
    const socket = new WebSocket(streamUrl(namespace, name, "vnc"), [PROTOCOL]);
    const made = (rfb.current = new RFB(box.current!, socket, {}));
    made.scaleViewport = true;
    made.background = "transparent";
    made.addEventListener("connect", () => { setState("connected"); made.focus(); });
    made.addEventListener("disconnect", () => setState("The screen has ended."));
    return () => { try { made.disconnect(); } catch { socket.close(); } };
  }, [namespace, name, uid, again]);
  return (
    <section class="stream">
      <div class="row">
        <span class="hint" data-test="screen-state">{state}</span>
        {state === "connected" && <button class="quiet" onClick={() => rfb.current?.sendCtrlAltDel()}>Ctrl-Alt-Del</button>}
        {state === "connected" && <button class="quiet" onClick={() => box.current?.requestFullscreen()}>Whole screen</button>}
        {state.startsWith("The") && <button onClick={() => { setState("connecting …"); retry(again + 1); }}>Connect again</button>}
      </div>
      <div class="screen" ref={box} data-test="screen" />
    </section>
  );
}
