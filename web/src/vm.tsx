// One VM: how it is, its console and screen, its YAML, and why it is where it is.
import { lazy, Suspense } from "preact/compat";
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Obj, type Row, abort, replace, useRows } from "./api";
import { Charts } from "./charts";
import { CheckedYaml, type Verdict } from "./checked";
import { Dot, Empty, Status, act, explainError, go, link, notify, possible, removal } from "./shell";
import { Why } from "./why";
import { type Machine, age, bytes, conditionTone, conditionWords, machines, quantity } from "./words";

const Console = lazy(() => import("./streams").then((m) => ({ default: m.Console })) as any) as any;
const Screen = lazy(() => import("./streams").then((m) => ({ default: m.Screen })) as any) as any;
const TABS: [string, string][] = [["", "Overview"], ["console", "Console"], ["screen", "Screen"], ["yaml", "YAML"], ["why", "Why here?"]];

export function Vm({ namespace, name, tab }: { namespace: string; name: string; tab: string }) {
  const vms = useRows("vms", [namespace], name), vmis = useRows("vmis", [namespace], name);
  const m = useMemo(() => machines(vms.rows, vmis.rows)[0], [vms, vmis]);
  if (!m) {
    const error = vms.error ?? vmis.error;
    return <main><Empty>{error ? error.message : vms.synced && vmis.synced ? <>There is no VM {namespace}/{name}. <a href="#/vms">All VMs</a></> : "…"}</Empty></main>;
  }
  const running = m.vmi?.phase === "Running";
  return (
    <main class={tab === "console" || tab === "screen" || tab === "yaml" ? "full" : ""}>
      <header class="page vm">
        <h1><a href="#/vms" class="crumb">{m.namespace}</a><span data-test="vm-name">{m.name}</span></h1>
        <Status m={m} />
        <div class="row actions">
          {possible(m).map(([step, word]) => <button key={step} data-test={step} onClick={() => act(step, m)}>{word}</button>)}
          <button class="danger" data-test="delete" onClick={() => removal(m, () => go("vms"))}>Delete</button>
        </div>
      </header>
      <nav class="tabs" aria-label="Parts of the VM">
        {TABS.map(([key, word]) => <a key={key} href={link(m, key)} data-test={`tab-${key || "overview"}`} aria-current={tab === key ? "page" : undefined}>{word}</a>)}
      </nav>
      <Suspense fallback={<p class="hint">…</p>}>
        {tab === "" && <Overview m={m} />}
        {tab === "console" && (running ? <Console namespace={namespace} name={name} uid={m.vmi!.uid} /> : <Waits m={m} />)}
        {tab === "screen" && (running ? <Screen namespace={namespace} name={name} uid={m.vmi!.uid} /> : <Waits m={m} />)}
        {tab === "yaml" && <Yaml m={m} />}
        {tab === "why" && <Why question={{ namespace, name }} version={`${m.node}${m.vmi?.phase}`} />}
      </Suspense>
    </main>
  );
}

const Waits = ({ m }: { m: Machine }) => <Empty>{m.vmi ? "It does not run yet; this opens as soon as it does." : "It is stopped."}</Empty>;

function Overview({ m }: { m: Machine }) {
  const events = useRows("events", [m.namespace], m.name), moves = useRows("migrations", [m.namespace]);
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((n) => n + 1), 5000); return () => clearInterval(timer); }, []);
  const vmi: Obj = m.vmi?.object ?? {}, vm: Obj = m.vm?.object ?? {};
  const conditions = [...(vmi.status?.conditions ?? []), ...(vm.status?.conditions ?? []).filter((c: Obj) => !["Ready", "LiveMigratable", "AgentConnected"].includes(c.type) || !m.vmi)]
    .filter((c: Obj, i: number, all: Obj[]) => all.findIndex((other) => other.type === c.type) === i).filter((c: Obj) => conditionWords(c as any));
  const mine = moves.rows.filter((move) => move.vmi === m.name).sort((a, b) => (a.created < b.created ? 1 : -1));
  const said = [...events.rows].sort((a, b) => (a.last < b.last ? 1 : -1)).slice(0, 40);
  const os = vmi.status?.guestOSInfo ?? {};
  const facts: [string, any][] = [
    ["Node", m.target ? `${m.node} → ${m.target}` : m.node],
    ["Pool", m.vmi ? m.pool || "primary" : ""],
    ["Hypervisor", m.hypervisor],
    ["Size", `${m.cpus} CPU, ${m.memory ? bytes(quantity(m.memory)) : "memory by its instance type"}`],
    ["Instance type", m.vm?.instancetype],
    ["Addresses", (vmi.status?.interfaces ?? []).flatMap((i: Obj) => i.ipAddresses ?? i.ipAddress ?? []).join(", ")],
    ["Guest", os.prettyName || os.name],
    ["Runs by", m.vm ? m.vm.strategy : "a VMI of its own"],
    ["Age", age(m.created)],
  ];
  return (
    <div class="columns">
      <section>
        <dl class="facts">{facts.filter(([, value]) => value).map(([key, value]) => [<dt key={key}>{key}</dt>, <dd key={`${key}=`} data-test={`fact-${key}`}>{value}</dd>])}</dl>
        {m.vm?.why && <p class="bad">{m.vm.why}</p>}
        <h2>How it is</h2>
        <ul class="plain" data-test="conditions">{conditions.map((c: Obj) => <li key={c.type}><Dot tone={conditionTone(c as any)} />{conditionWords(c as any)}</li>)}{conditions.length === 0 && <li class="hint">{m.vmi ? "Nothing is known yet." : "It is stopped."}</li>}</ul>
        {mine.length > 0 && <h2>Moves</h2>}
        <ul class="plain">{mine.slice(0, 5).map((move) => <Move key={move.uid} move={move} />)}</ul>
      </section>
      <section>
        {m.vmi?.phase === "Running" && <Charts namespace={m.namespace} name={m.name} uid={m.vmi.uid} />}
        <h2>What happened</h2>
        {events.error && <p class="hint">{events.error.message}</p>}
        <ul class="plain events">{said.map((e) => <li key={e.uid}><Dot tone={e.type === "Warning" ? "bad" : "off"} /><span><b>{e.reason}</b> {e.message}</span><time>{age(e.last)}{e.count > 1 ? ` × ${e.count}` : ""}</time></li>)}
          {said.length === 0 && !events.error && <li class="hint">No event is kept.</li>}</ul>
      </section>
    </div>
  );
}

const STAGES = ["Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded"];
function Move({ move }: { move: Row }) {
  const stage = STAGES.indexOf(move.phase || "Pending"), over = move.phase === "Succeeded" || move.phase === "Failed";
  return (
    <li class="move" data-test="move" data-phase={move.phase}>
      <Dot tone={move.phase === "Succeeded" ? "good" : move.phase === "Failed" ? "bad" : "busy"} />
      <span><b>{move.phase || "Pending"}</b> {move.from && <>{move.from} → {move.to || "…"}</>} {move.why}
        {!over && <progress max={STAGES.length - 1} value={Math.max(0, stage)} />}</span>
      <time>{age(move.created)}</time>
      {!over && <button class="quiet" onClick={() => abort(move.namespace, move.name).catch((e) => notify(explainError(e), "bad"))}>Abort</button>}
    </li>
  );
}

function Yaml({ m }: { m: Machine }) {
  const source: Obj = m.vm?.object ?? m.vmi!.object;
  const [text, setText] = useState<string | null>(null);
  const [base, setBase] = useState("");
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const [busy, setBusy] = useState(false);
  const version = source.metadata.resourceVersion;
  const load = async () => {
    const { stringify } = await import("./editor");
    const { status: _, ...shown } = source;
    setText(stringify(shown, { lineWidth: 0, aliasDuplicateObjects: false }));
    setBase(version);
  };
  useEffect(() => { if (text === null) load(); }, []);
  if (text === null) return <p class="hint">…</p>;
  const save = async () => {
    setBusy(true);
    try { const kept = await replace(verdict!.object!); setBase(kept.metadata.resourceVersion); notify(`${m.name} is saved.`); setText(null); await load(); }
    catch (error) { notify(explainError(error), "bad"); }
    setBusy(false);
  };
  return (
    <section class="yaml">
      <div class="row">
        {m.vm ? <button data-test="save" class="primary" disabled={!verdict?.allowed || busy} onClick={save}>Save</button> : <span class="hint">A VMI that no VM made is not changed here.</span>}
        <button class="quiet" onClick={load}>Load again</button>
        {base !== version && <span class="held">It has changed meanwhile; load it again before you save.</span>}
      </div>
      <CheckedYaml text={text} onText={m.vm ? setText : undefined} fresh={false} onVerdict={setVerdict} />
    </section>
  );
}
