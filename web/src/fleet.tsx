// The fleet: pools as bands, nodes in them, VMs where they run.
import { useMemo } from "preact/hooks";
import { type Obj, type Row, useRows } from "./api";
import { Dot, Empty, Meter, limited, link, scope, useShared } from "./shell";
import { type Machine, bytes, machines, quantity } from "./words";

const MOST = 160; // cells of a node; a click on the rest leads to the list

interface Pool { name: string; selector: Obj; by: string; hypervisor: string; image: string }
export function poolsOf(kubevirt: Obj | undefined): Pool[] {
  const spec = kubevirt?.spec ?? {};
  const listed = [...(spec.virtHandlerPools ?? []), ...(spec.additionalVirtHandlers ?? [])];
  return listed.filter((pool: Obj) => pool.nodeSelector).map((pool: Obj) => {
    const devices: string[] = pool.selector?.deviceNames ?? [];
    const labels = Object.entries(pool.selector?.vmLabels?.matchLabels ?? {}).map(([key, value]) => `${key}=${value}`);
    return { name: pool.name, selector: pool.nodeSelector, by: [...devices, ...labels].join(", "), hypervisor: pool.hypervisor ?? "", image: pool.virtLauncherImage ?? "" };
  });
}
const owner = (pools: Pool[], labels: Obj) => pools.find((pool) => Object.entries(pool.selector).every(([key, value]) => labels[key] === value));

export function Fleet() {
  const shown = useShared(scope);
  const vms = useRows("vms", shown), vmis = useRows("vmis", shown);
  const nodes = useRows("nodes", [""]), kubevirts = useRows("kubevirts", [""]);
  const installed = kubevirts.rows[0];
  const handlers = useRows("handlers", installed ? [installed.namespace] : []);
  const all = useMemo(() => machines(vms.rows, vmis.rows), [vms, vmis]);
  const pools = useMemo(() => poolsOf(installed?.object), [installed]);
  const byNode = useMemo(() => {
    const found = new Map<string, Machine[]>();
    for (const m of all) for (const node of new Set([m.node, m.target])) if (node) found.set(node, [...(found.get(node) ?? []), m]);
    for (const list of found.values()) list.sort((a, b) => a.key.localeCompare(b.key));
    return found;
  }, [all]);
  const bands = useMemo(() => {
    const found = new Map<string, Row[]>([["", []], ...pools.map((pool): [string, Row[]] => [pool.name, []])]);
    for (const node of nodes.rows) found.get(owner(pools, node.labels)?.name ?? "")!.push(node);
    for (const list of found.values()) list.sort((a, b) => a.name.localeCompare(b.name));
    return [...found].sort(([a], [b]) => (a === "" ? -1 : b === "" ? 1 : a.localeCompare(b)));
  }, [nodes, pools]);
  const counts = new Map<string, number>();
  for (const m of all) counts.set(m.tone, (counts.get(m.tone) ?? 0) + 1);
  const homeless = all.filter((m) => m.vmi && !m.node);
  return (
    <main>
      <header class="page">
        <h1>Fleet</h1>
        <div class="tally">
          <a href="#/vms"><b>{all.length}</b> VMs</a>
          {([["good", "run"], ["busy", "on their way"], ["held", "paused"], ["off", "stopped"], ["bad", "in trouble"]] as const).map(([tone, word]) =>
            counts.get(tone) ? <span key={tone}><Dot tone={tone} /><b>{counts.get(tone)}</b> {word}</span> : null)}
          {nodes.rows.length > 0 && <span><b>{nodes.rows.length}</b> nodes</span>}
        </div>
      </header>
      {nodes.error?.code === 403 && <p class="hint">You may not list nodes, so this page shows only where your VMs run.</p>}
      {nodes.error?.code === 403 && <NoNodes byNode={byNode} />}
      {bands.filter(([name, list]) => list.length || (name && !nodes.error)).map(([name, list]) => {
        const pool = pools.find((each) => each.name === name);
        return (
          <section class="band" key={name} data-test={`pool-${name || "primary"}`}>
            <div class="bandname">
              <h2>{name || "primary"}</h2>
              <p>{pool ? (pool.by ? <>for <code>{pool.by}</code></> : "by node selector") : "every other node"}</p>
              {pool?.hypervisor && <p>{pool.hypervisor}</p>}
            </div>
            <div class="nodes">
              {list.length === 0 && <p class="hint">No node has its labels.</p>}
              {list.map((node) => <Node key={node.uid} node={node} here={byNode.get(node.name) ?? []}
                handler={handlers.rows.find((pod) => pod.node === node.name && pod.phase === "Running")} seen={!handlers.error} />)}
            </div>
          </section>
        );
      })}
      {homeless.length > 0 && (
        <section class="band">
          <div class="bandname"><h2>no node yet</h2></div>
          <div class="nodes"><div class="node"><Cells here={homeless} node="" /></div></div>
        </section>
      )}
      {nodes.synced && all.length === 0 && <Empty>No VM yet{limited.value ? " in your namespaces" : ""}. <a href="#/create">Create one</a></Empty>}
    </main>
  );
}

function Node({ node, here, handler, seen }: { node: Row; here: Machine[]; handler: Row | undefined; seen: boolean }) {
  const running = here.filter((m) => m.node === node.name);
  const memory = running.reduce((sum, m) => sum + quantity(m.memory), 0), cpus = running.reduce((sum, m) => sum + quantity(m.cpus), 0);
  const whole = quantity(node.memory), cores = quantity(node.cpu);
  const state = !node.ready ? "not ready" : node.cordoned ? "cordoned" : !node.schedulable ? "takes no VMs" : "";
  const served = handler ? (handler.ready ? "handler ready" : "handler not ready") : seen ? "no handler" : "";
  return (
    <article class="node" data-test={`node-${node.name}`}>
      <h3><Dot tone={state ? (node.ready ? "held" : "bad") : "good"} />{node.name}{state && <em>{state}</em>}</h3>
      <p class="facts">{[node.hypervisors.join(" + ") || "no hypervisor", served].filter(Boolean).join(" · ")}</p>
      <Cells here={here} node={node.name} />
      <div class="meters">
        <Meter part={memory} whole={whole} label={`VMs have ${bytes(memory)} of ${bytes(whole)} memory`} />
        <Meter part={cpus} whole={cores} label={`VMs have ${cpus} virtual CPUs on ${cores} CPUs`} />
        <span>{bytes(memory)} of {bytes(whole)}</span>
        <span>{cpus} vCPU on {cores}</span>
      </div>
      {Object.entries(node.devices).map(([name, count]) => <p class="facts" key={name}>{String(count)} × {name}</p>)}
    </article>
  );
}

function Cells({ here, node }: { here: Machine[]; node: string }) {
  return (
    <div class={here.length > 24 ? "cells many" : "cells"}>
      {here.slice(0, MOST).map((m) => {
        const words = `${m.namespace}/${m.name}: ${m.status}${m.target === node && node ? ", arriving" : ""}`;
        return <a key={m.key} class={`cell ${m.tone} ${m.target === node && node ? "arriving" : ""}`} href={link(m)} title={words} aria-label={words} />;
      })}
      {here.length > MOST && <a class="more" href={`#/vms?${node}`}>+{here.length - MOST}</a>}
      {here.length === 0 && <span class="none">no VMs</span>}
    </div>
  );
}

function NoNodes({ byNode }: { byNode: Map<string, Machine[]> }) {
  return <section class="band"><div class="bandname"><h2>your VMs</h2></div><div class="nodes">
    {[...byNode].map(([node, here]) => <article class="node" key={node}><h3>{node}</h3><Cells here={here} node={node} /></article>)}
  </div></section>;
}
