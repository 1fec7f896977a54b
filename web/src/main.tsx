// The page: who is there, where they are, and the frame around it.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, known, live, login, logout, useRows, whenOut } from "./api";
import { Create } from "./create";
import { Fleet } from "./fleet";
import { Confirm, Notices, ScopeKeeper, Shared, chooseScope, explainError, go, limited, me, route, scope, useShared } from "./shell";
import "@xterm/xterm/css/xterm.css";
import "./style.css";
import { Vm } from "./vm";
import { Vms } from "./vms";

const THEME = "virtfleet.theme";
const theme = new Shared(localStorage.getItem(THEME) ?? "");
const applied = (value: string) => { if (value) document.documentElement.dataset.theme = value; else delete document.documentElement.dataset.theme; };
applied(theme.value);

function Login({ way, trouble }: { way: string; trouble: string }) {
  const [token, setToken] = useState(""), [problem, setProblem] = useState(trouble);
  const enter = async (event: Event) => {
    event.preventDefault();
    try { me.set(await login(token)); } catch (error) { setProblem(explainError(error)); }
  };
  return (
    <div class="login">
      <form onSubmit={enter}>
        <h1>VirtFleet</h1>
        {way === "tokens" && <label><span>Your token for this cluster</span><input type="password" name="token" autofocus value={token} onInput={(event) => setToken(event.currentTarget.value)} autocomplete="off" /></label>}
        {way === "tokens" && <p class="hint">For example of <code>kubectl create token NAME</code>. You can do here what the token may do, and nothing else.</p>}
        {way === "owner" && <p>Open the link that <code>virtfleet dashboard</code> printed last. Each link lets one browser in.</p>}
        {way === "header" && <p>The proxy in front of this page has to log you in first.</p>}
        {problem && <p class="bad" role="alert">{problem}</p>}
        {way === "tokens" && <button class="primary" type="submit">Log in</button>}
      </form>
    </div>
  );
}

function Frame() {
  const who = useShared(me)!, at = useShared(route), dark = useShared(theme);
  const [connected, setConnected] = useState(true);
  useEffect(() => { live.onState = setConnected; live.open(); }, []);
  useEffect(() => {
    let before = "";
    const keys = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, .cm-editor, .terminal, .screen")) return;
      if (before === "g" && event.key === "f") go("");
      else if (before === "g" && event.key === "v") go("vms");
      else if (event.key === "c") go("create");
      before = event.key;
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, []);
  const [page, namespace, name, tab] = at.split("?")[0].split("/");
  useEffect(() => { document.title = page === "vm" ? `${name} · VirtFleet` : "VirtFleet"; }, [at]);
  const turn = () => {
    const now = dark || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    localStorage.setItem(THEME, next); applied(next); theme.set(next);
  };
  return (
    <>
      <ScopeKeeper />
      <div class="bar">
        <a class="mark" href="#/"><svg viewBox="0 0 16 10" aria-hidden="true"><path d="M0 0h4v4H0zM6 0h4v4H6zM12 0h4v4h-4zM0 6h4v4H0zM6 6h4v4H6z" /><path class="odd" d="M12 6h4v4h-4z" /></svg>VirtFleet</a>
        <nav aria-label="Pages">
          <a href="#/" aria-current={page === "" ? "page" : undefined} title="g f">Fleet</a>
          <a href="#/vms" aria-current={page === "vms" || page === "vm" ? "page" : undefined} title="g v">VMs</a>
          <a href="#/create" aria-current={page === "create" ? "page" : undefined} title="c">Create</a>
        </nav>
        <Scope />
        {!connected && <span class="held lost" role="status">not connected; trying again</span>}
        <span class="who" title={`${who.user} at ${who.server}`} data-test="who">{who.user.split(":").pop()}</span>
        <button class="quiet icon" onClick={turn} aria-label="Light or dark" title="Light or dark">◐</button>
        <button class="quiet" onClick={async () => { await logout(); location.reload(); }}>Log out</button>
      </div>
      {page === "" && <Fleet />}
      {page === "vms" && <Vms />}
      {page === "vm" && <Vm key={`${namespace}/${name}`} namespace={namespace} name={name} tab={tab ?? ""} />}
      {page === "create" && <Create />}
      <Confirm />
      <Notices />
    </>
  );
}

/** All namespaces or one of them; who may not list them names theirs. */
function Scope() {
  const shown = useShared(scope), some = useShared(limited);
  const namespaces = useRows("namespaces", [""]);
  if (some && namespaces.rows.length === 0) {
    return <label class="scope"><span>Namespaces</span><input value={shown.join(" ")} aria-label="Namespaces" data-test="scope"
      onChange={(event) => chooseScope(event.currentTarget.value.split(/[\s,]+/).filter(Boolean).slice(0, 8))} /></label>;
  }
  return <label class="scope"><select aria-label="Namespace" data-test="scope" value={shown.length === 1 ? shown[0] : ""} onChange={(event) => chooseScope(event.currentTarget.value ? [event.currentTarget.value] : [])}>
    {!some && <option value="">all namespaces</option>}
    {namespaces.rows.map((n) => n.name).sort().map((n) => <option key={n} value={n}>{n}</option>)}
  </select></label>;
}

function App({ way, trouble }: { way: string; trouble: string }) {
  const who = useShared(me);
  return who ? <Frame /> : <Login way={way} trouble={trouble} />;
}

async function begin() {
  const key = /^#key=(.+)$/.exec(location.hash)?.[1];
  if (key) { history.replaceState(null, "", location.pathname); route.set(""); } // at once: it is in nobody's way later
  let trouble = "";
  const { way } = await get("/api/way").catch((error) => { trouble = explainError(error); return { way: "" }; });
  try {
    if (key) me.set(await login(key));
    else if (way === "header") me.set(await login(""));
    else if (known()) me.set(await get("/api/me"));
  } catch (error) { if (key || way === "header") trouble = explainError(error); }
  whenOut(() => { if (me.value) { live.close(); me.set(null); } });
  render(<App way={way} trouble={trouble} />, document.getElementById("app")!);
}
begin();
