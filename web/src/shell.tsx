// What all pages share: the route, the namespaces that are shown, messages, confirmation, status marks.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type Me, Refused, type Step, remove, take, useRows } from "./api";
import type { Machine, Tone } from "./words";

// --- a value that several components look at
export class Shared<T> {
  listeners = new Set<(value: T) => void>();
  constructor(public value: T) {}
  set(value: T) { this.value = value; for (const listener of this.listeners) listener(value); }
}
export function useShared<T>(shared: Shared<T>): T {
  const [value, set] = useState(shared.value);
  useEffect(() => {
    const listener = (next: T) => set(() => next);
    shared.listeners.add(listener);
    listener(shared.value);
    return () => { shared.listeners.delete(listener); };
  }, [shared]);
  return value;
}

export const me = new Shared<Me | null>(null);
const path = () => decodeURIComponent(location.hash.replace(/^#\/?/, ""));
export const route = new Shared(path());
addEventListener("hashchange", () => route.set(path()));
export const go = (to: string) => { location.hash = `#/${to}`; };

// --- which namespaces: all, or where somebody may not see all, those they name
const SCOPE = "virtfleet.namespaces";
const stored = (): string[] => { try { return JSON.parse(localStorage.getItem(SCOPE) ?? "[]"); } catch { return []; } };
export const scope = new Shared<string[]>([""]);
export const limited = new Shared(false);
export function chooseScope(namespaces: string[]) {
  localStorage.setItem(SCOPE, JSON.stringify(namespaces));
  scope.set(namespaces.length ? namespaces : [""]);
}
/** Whether all namespaces may be seen is found out by asking for all. */
export function ScopeKeeper() {
  const all = useRows("vms", [""]);
  const who = useShared(me);
  useEffect(() => {
    if (all.error?.code !== 403 || limited.value) return;
    limited.set(true);
    const own = stored();
    scope.set(own.length ? own : [who?.namespace || "default"]);
  }, [all.error, who]);
  return null;
}

// --- messages
export interface Notice { id: number; text: string; tone: Tone }
export const notices = new Shared<Notice[]>([]);
let last = 0;
export function notify(text: string, tone: Tone = "good") {
  const id = ++last;
  notices.set([...notices.value.slice(-3), { id, text, tone }]);
  setTimeout(() => notices.set(notices.value.filter((notice) => notice.id !== id)), tone === "bad" ? 12000 : 4000);
}
export const explainError = (error: unknown): string => {
  if (!(error instanceof Refused)) return String(error);
  if (error.code === 403) return `You may not do that: ${error.message}`;
  return error.message;
};
export function Notices() {
  const shown = useShared(notices);
  return <div class="notices" role="status" aria-live="polite">{shown.map((n) => <div key={n.id} class={`notice ${n.tone}`}>{n.text}</div>)}</div>;
}

// --- confirmation, in the page
interface Question { text: string; yes: string; then: () => void }
export const question = new Shared<Question | null>(null);
export function Confirm() {
  const asked = useShared(question);
  useEffect(() => {
    if (!asked) return;
    const before = document.activeElement as HTMLElement | null;
    document.querySelector<HTMLElement>(".confirm .quiet")?.focus();
    return () => before?.focus();
  }, [asked]);
  if (!asked) return null;
  const close = () => question.set(null);
  return (
    <div class="veil" onClick={close} onKeyDown={(event) => event.key === "Escape" && close()}>
      <div class="confirm" role="alertdialog" aria-modal="true" aria-label={asked.text} onClick={(event) => event.stopPropagation()}>
        <p>{asked.text}</p>
        <div class="row end">
          <button class="quiet" onClick={close}>Keep it</button>
          <button class="danger" data-test="confirm" onClick={() => { close(); asked.then(); }}>{asked.yes}</button>
        </div>
      </div>
    </div>
  );
}

// --- what can be done with a VM
const DONE: Record<Step, string> = {
  start: "starts", stop: "stops", restart: "restarts", pause: "is paused", unpause: "goes on", migrate: "moves to another node",
};
export async function act(step: Step, m: { namespace: string; name: string }) {
  try {
    await take(step, m.namespace, m.name);
    notify(`${m.name} ${DONE[step]}.`);
  } catch (error) { notify(explainError(error), "bad"); }
}
export function removal(m: Machine, then: () => void = () => {}) {
  question.set({
    text: `Delete ${m.namespace}/${m.name}? Its disks in this VM's own volumes are lost with it.`,
    yes: "Delete",
    then: async () => {
      try { await remove(m.namespace, m.name, m.vm !== null); notify(`${m.name} is being deleted.`); then(); }
      catch (error) { notify(explainError(error), "bad"); }
    },
  });
}
export function possible(m: Machine): [Step, string][] {
  const runs = m.vmi?.phase === "Running";
  const steps: [Step, string][] = [];
  if (m.vm && !m.vmi) steps.push(["start", "Start"]);
  if (runs && m.vmi!.paused) steps.push(["unpause", "Go on"]);
  else if (runs) steps.push(["pause", "Pause"]);
  if (m.vm && runs && m.vmi!.migratable && !m.vmi!.moving) steps.push(["migrate", "Migrate"]);
  if (m.vm && m.vmi) steps.push(["restart", "Restart"], ["stop", "Stop"]);
  return steps;
}

// --- small things
export const Dot = ({ tone }: { tone: Tone }) => <i class={`dot ${tone}`} aria-hidden="true" />;
export function Status({ m }: { m: Machine }) {
  return <span class={`status ${m.tone}`} data-test="status"><Dot tone={m.tone} />{m.status}{m.outdated && <em title="Its launcher is not the one that it would get now">outdated</em>}</span>;
}
export const Empty = ({ children }: { children: ComponentChildren }) => <div class="empty">{children}</div>;
export function Meter({ part, whole, label }: { part: number; whole: number; label: string }) {
  const share = whole ? Math.min(1, part / whole) : 0;
  return (
    <div class="meter" role="img" aria-label={label} title={label}>
      <div class={share > 0.9 ? "fill full" : "fill"} style={{ width: `${(share * 100).toFixed(1)}%` }} />
    </div>
  );
}
export const link = (m: { namespace: string; name: string }, tab = "") => `#/vm/${m.namespace}/${m.name}${tab ? `/${tab}` : ""}`;
