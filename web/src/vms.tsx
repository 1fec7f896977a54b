// All VMs: filtered, sorted, only the rows in sight drawn.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useRows } from "./api";
import { Empty, Status, act, go, link, possible, removal, route, scope, useShared } from "./shell";
import { type Machine, age, bytes, machines, quantity } from "./words";

const HEIGHT = 34, TALL = 62;
type Column = [keyof Machine | "size", string, (m: Machine) => any, (m: Machine) => string | number];
const COLUMNS: Column[] = [
  ["name", "Name", (m) => <a href={link(m)}>{m.name}</a>, (m) => m.name],
  ["namespace", "Namespace", (m) => m.namespace, (m) => m.namespace],
  ["status", "Status", (m) => <Status m={m} />, (m) => m.status],
  ["pool", "Pool", (m) => (m.vmi ? m.pool || "primary" : ""), (m) => m.pool],
  ["hypervisor", "Hypervisor", (m) => m.hypervisor, (m) => m.hypervisor],
  ["node", "Node", (m) => (m.target ? `${m.node} → ${m.target}` : m.node), (m) => m.node],
  ["ip", "Address", (m) => m.ip, (m) => m.ip],
  ["size", "Size", (m) => `${m.cpus} × ${m.memory ? bytes(quantity(m.memory)) : "–"}`, (m) => quantity(m.memory)],
  ["created", "Age", (m) => age(m.created), (m) => m.created],
];

export function Vms() {
  const shown = useShared(scope), at = useShared(route);
  const vms = useRows("vms", shown), vmis = useRows("vmis", shown);
  const [filter, setFilter] = useState(() => decodeURIComponent(at.split("?")[1] ?? ""));
  const [sorting, sort] = useState<{ by: string; down: boolean }>({ by: "name", down: false });
  const [chosen, choose] = useState(0);
  const [top, setTop] = useState(0);
  const [space, setSpace] = useState({ height: 600, wide: true });
  const box = useRef<HTMLDivElement>(null), field = useRef<HTMLInputElement>(null);
  const all = useMemo(() => machines(vms.rows, vmis.rows), [vms, vmis]);
  const found = useMemo(() => {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = words.length ? all.filter((m) => words.every((word) => (word.startsWith("-") && word.length > 1 ? !m.text.includes(word.slice(1)) : m.text.includes(word)))) : all;
    const value = COLUMNS.find(([name]) => name === sorting.by)![3];
    return [...kept].sort((a, b) => {
      const x = value(a), y = value(b);
      const order = x < y ? -1 : x > y ? 1 : a.key < b.key ? -1 : 1;
      return sorting.down ? -order : order;
    });
  }, [all, filter, sorting]);
  const height = space.wide ? HEIGHT : TALL;
  useEffect(() => {
    const measure = () => setSpace({ height: box.current?.clientHeight ?? 600, wide: innerWidth > 760 });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const keys = (event: KeyboardEvent) => {
      const typing = event.target instanceof HTMLInputElement;
      if (event.key === "/" && !typing) { event.preventDefault(); field.current!.focus(); }
      if (typing && event.key === "Escape") field.current!.blur();
      if (typing && event.key !== "ArrowDown" && event.key !== "ArrowUp" && event.key !== "Enter") return;
      const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
      if (step && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        choose((now) => {
          const next = Math.max(0, Math.min(found.length - 1, now + step)), list = box.current!;
          if (next * height < list.scrollTop) list.scrollTop = next * height;
          if ((next + 1) * height > list.scrollTop + list.clientHeight) list.scrollTop = (next + 1) * height - list.clientHeight;
          return next;
        });
      }
      if (event.key === "Enter" && found[chosen] && !(event.target instanceof HTMLButtonElement) && !(event.target instanceof HTMLAnchorElement))
        go(`vm/${found[chosen].namespace}/${found[chosen].name}`);
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, [found, chosen, height]);
  const first = Math.max(0, Math.floor(top / height) - 6), count = Math.ceil(space.height / height) + 12;
  return (
    <main class="full">
      <header class="page">
        <h1>VMs</h1>
        <input ref={field} class="filter" type="search" placeholder="Filter by anything: name, status, node, -not  ( / )" aria-label="Filter" value={filter}
          onInput={(event) => { setFilter(event.currentTarget.value); choose(0); box.current!.scrollTop = 0; }} />
        <span class="hint" data-test="count">{found.length === all.length ? all.length : `${found.length} of ${all.length}`}{vms.synced && vmis.synced ? "" : " …"}</span>
        <a class="button" href="#/create">Create</a>
      </header>
      {vms.error && <p class="hint bad">{vms.error.message}</p>}
      <div class="table" role="table" aria-rowcount={found.length}>
        <div class="tr head" role="row">
          {COLUMNS.map(([name, title]) => (
            <button key={name} class={`td ${name}`} aria-pressed={sorting.by === name}
              onClick={() => sort({ by: name, down: sorting.by === name && !sorting.down })}>{title}{sorting.by === name ? (sorting.down ? " ↓" : " ↑") : ""}</button>
          ))}
        </div>
        <div class="body" ref={box} onScroll={(event) => setTop(event.currentTarget.scrollTop)} tabIndex={-1}>
          <div class="sizer" style={{ height: `${found.length * height}px` }}>
            {found.slice(first, first + count).map((m, i) => (
              <div key={m.key} role="row" aria-rowindex={first + i + 1} data-test={`row-${m.key}`} class={`tr ${first + i === chosen ? "chosen" : ""}`}
                style={{ transform: `translateY(${(first + i) * height}px)` }} onClick={() => choose(first + i)} onDblClick={() => go(`vm/${m.namespace}/${m.name}`)}>
                {COLUMNS.map(([name, , show]) => <span key={name} role="cell" class={`td ${name === "node" ? "on" : name}`}>{show(m)}</span>)}
                <span class="td actions" role="cell">
                  {possible(m).map(([step, word]) => <button key={step} class="quiet" onClick={() => act(step, m)}>{word}</button>)}
                  <button class="quiet" onClick={() => removal(m)}>Delete</button>
                </span>
              </div>
            ))}
          </div>
          {found.length === 0 && vms.synced && <Empty>{all.length ? "Nothing fits the filter." : <>No VM yet. <a href="#/create">Create one</a></>}</Empty>}
        </div>
      </div>
    </main>
  );
}
