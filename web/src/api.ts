// Requests to the server, and the one websocket through which lists are followed.
import { useEffect, useMemo, useState } from "preact/hooks";

export type Obj = Record<string, any>;
export interface Row { name: string; namespace: string; uid: string; created: string; deleting: boolean; [field: string]: any }
export interface Me { user: string; groups: string[]; namespace: string; server: string }

export class Refused extends Error {
  constructor(readonly code: number, message: string, readonly causes: { field: string; message: string }[] = []) {
    super(message);
  }
}

const KEPT = "virtfleet.secret";
let secret = localStorage.getItem(KEPT) ?? "";
let onOut: () => void = () => {};
export const whenOut = (then: () => void) => { onOut = then; };

async function asked(method: string, path: string, body?: unknown): Promise<any> {
  const headers: Record<string, string> = { "X-Virtfleet-Secret": secret };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Refused(0, "The dashboard's server does not answer.");
  }
  const text = await answer.text();
  let data: any = {};
  try { data = text ? JSON.parse(text) : {}; } catch { data = { message: text }; }
  if (!answer.ok) {
    if (answer.status === 401 && path !== "/api/login") onOut();
    throw new Refused(answer.status, data.message || `The server answered ${answer.status}.`, data.details?.causes ?? []);
  }
  return data;
}

export const get = (path: string) => asked("GET", path);
export const post = (path: string, body: unknown) => asked("POST", path, body);

const VM = (namespace: string) => `/k8s/apis/kubevirt.io/v1/namespaces/${namespace}/virtualmachines`;
const STEP = (namespace: string, kind: string, name: string, step: string) =>
  `/k8s/apis/subresources.kubevirt.io/v1/namespaces/${namespace}/${kind}/${name}/${step}`;

export const create = (vm: Obj) => asked("POST", VM(vm.metadata.namespace), vm);
export const replace = (vm: Obj) => asked("PUT", `${VM(vm.metadata.namespace)}/${vm.metadata.name}`, vm);
export const remove = (namespace: string, name: string, ofVm = true) =>
  asked("DELETE", ofVm ? `${VM(namespace)}/${name}` : `/k8s/apis/kubevirt.io/v1/namespaces/${namespace}/virtualmachineinstances/${name}`);
export const steps = { start: "virtualmachines", stop: "virtualmachines", restart: "virtualmachines", migrate: "virtualmachines",
  pause: "virtualmachineinstances", unpause: "virtualmachineinstances" } as const;
export type Step = keyof typeof steps;
export const take = (step: Step, namespace: string, name: string) => asked("PUT", STEP(namespace, steps[step], name, step), {});
export const abort = (namespace: string, migration: string) =>
  asked("DELETE", `/k8s/apis/kubevirt.io/v1/namespaces/${namespace}/virtualmachineinstancemigrations/${migration}`);

export function socketUrl(path: string, query: Record<string, string> = {}): string {
  const url = new URL(path, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.hash = "";
  for (const [name, value] of Object.entries({ ...query, secret })) url.searchParams.set(name, value);
  return url.toString();
}
export const streamUrl = (namespace: string, name: string, what: "console" | "vnc") =>
  socketUrl(STEP(namespace, "virtualmachineinstances", name, what));

export async function login(token: string): Promise<Me> {
  const answer = await post("/api/login", { token });
  secret = answer.secret;
  localStorage.setItem(KEPT, secret);
  return answer;
}
export async function logout(): Promise<void> {
  try { await post("/api/logout", {}); } catch { /* out is out */ }
  secret = "";
  localStorage.removeItem(KEPT);
  live.close();
}
export const known = () => secret !== "";

// --- lists

export class List {
  rows = new Map<string, Row>();
  synced = false;
  error: { code: number; message: string } | null = null;
  version = 0;
  users = 0;
  fresh: Set<string> | null = new Set();
  listeners = new Set<() => void>();
  constructor(readonly id: number, readonly wish: { kind: string; namespace: string; name: string }) {}
  changed() { this.version++; for (const listener of this.listeners) listener(); }
}

class Live {
  socket: WebSocket | null = null;
  lists = new Map<string, List>();
  byId = new Map<number, List>();
  next = 1;
  pause = 500;
  connected = false;
  wanted = false;
  onState: (connected: boolean) => void = () => {};

  open() {
    this.wanted = true;
    if (this.socket) return;
    const socket = (this.socket = new WebSocket(socketUrl("/api/follow")));
    socket.onopen = () => {
      this.connected = true; this.pause = 500; this.onState(true);
      for (const list of this.byId.values()) this.ask(list);
    };
    socket.onmessage = (event) => this.heard(JSON.parse(event.data));
    socket.onclose = () => {
      this.socket = null; this.connected = false;
      if (!this.wanted) return;
      this.onState(false);
      // The state of a websocket's refusal is not told to scripts; a plain request says whether we are out.
      get("/api/me").catch(() => {});
      setTimeout(() => this.wanted && this.open(), this.pause);
      this.pause = Math.min(this.pause * 2, 15000);
    };
  }
  close() { this.wanted = false; this.socket?.close(); this.lists.clear(); this.byId.clear(); }
  ask(list: List) {
    list.fresh = new Set();
    if (this.connected) this.socket!.send(JSON.stringify({ id: list.id, ...list.wish }));
  }
  heard(said: any) {
    const list = this.byId.get(said.id);
    if (!list) return;
    if (said.error) {
      list.error = { code: said.error.code, message: said.error.message };
      if (said.final) { list.synced = true; list.rows.clear(); }
      else list.fresh = new Set();
    }
    for (const row of said.rows ?? []) { list.rows.set(row.uid, row); list.fresh?.add(row.uid); }
    for (const uid of said.gone ?? []) list.rows.delete(uid);
    if (said.synced) {
      if (list.fresh) for (const uid of list.rows.keys()) if (!list.fresh.has(uid)) list.rows.delete(uid);
      list.fresh = null; list.synced = true; list.error = null;
    }
    list.changed();
  }
  use(kind: string, namespace: string, name: string): List {
    const key = `${kind}/${namespace}/${name}`;
    let list = this.lists.get(key);
    if (!list) {
      list = new List(this.next++, { kind, namespace, name });
      this.lists.set(key, list);
      this.byId.set(list.id, list);
      this.ask(list);
    }
    return list;
  }
  leave(list: List) {
    // A page that is left is often come back to.
    setTimeout(() => {
      if (list.users > 0 || !this.byId.has(list.id)) return;
      this.byId.delete(list.id);
      this.lists.delete(`${list.wish.kind}/${list.wish.namespace}/${list.wish.name}`);
      if (this.connected) this.socket!.send(JSON.stringify({ id: list.id, drop: true }));
    }, 5000);
  }
}
export const live = new Live();

/** Rows of a kind in all of these namespaces ("" is every one), drawn anew at most once a frame. */
export function useRows(kind: string, namespaces: string[], name = ""): { rows: Row[]; synced: boolean; error: List["error"]; version: number } {
  const [version, draw] = useState(0);
  const key = `${kind}|${namespaces.join(",")}|${name}`;
  const lists = useMemo(() => namespaces.map((namespace) => live.use(kind, namespace, name)), [key]);
  useEffect(() => {
    let frame = 0;
    const listener = () => { frame ||= requestAnimationFrame(() => { frame = 0; draw((n) => n + 1); }); };
    for (const list of lists) { list.users++; list.listeners.add(listener); }
    listener();
    return () => {
      cancelAnimationFrame(frame);
      for (const list of lists) { list.users--; list.listeners.delete(listener); live.leave(list); }
    };
  }, [lists]);
  return useMemo(() => ({
    rows: lists.flatMap((list) => [...list.rows.values()]),
    synced: lists.every((list) => list.synced),
    error: lists.find((list) => list.error)?.error ?? null,
    version,
  }), [lists, version]);
}
