// Figures, ages and states, in words for people.
import type { Row } from "./api";

const UNITS: Record<string, number> = { "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, m: 1e-3 };
export function quantity(text: string | number): number {
  const found = /^([0-9.]+(?:e[0-9]+)?)([a-zA-Z]*)$/.exec(String(text));
  return found ? Number(found[1]) * (UNITS[found[2]] ?? 1) : 0;
}
export function bytes(amount: number): string {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (amount < 1024) return `${amount < 10 && unit !== "B" ? amount.toFixed(1) : Math.round(amount)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} TiB`;
}
export function age(time: string): string {
  if (!time) return "";
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export type Tone = "good" | "busy" | "bad" | "off" | "held";
export interface Machine {
  key: string; name: string; namespace: string; status: string; tone: Tone; node: string; target: string; pool: string; hypervisor: string;
  ip: string; cpus: number | string; memory: string; created: string; vm: Row | null; vmi: Row | null; outdated: boolean; text: string;
}
const TONES: Record<string, Tone> = {
  Running: "good", Stopped: "off", Paused: "held", Starting: "busy", Provisioning: "busy", Migrating: "busy", Stopping: "busy",
  Terminating: "busy", Scheduling: "busy", Scheduled: "busy", Pending: "busy", WaitingForVolumeBinding: "busy", Succeeded: "off",
};
export const tone = (status: string): Tone => TONES[status] ?? (status ? "bad" : "busy");

/** A VM and its run are one thing to people; a run without a VM is shown, too. */
export function machines(vms: Row[], vmis: Row[]): Machine[] {
  const runs = new Map(vmis.map((vmi) => [`${vmi.namespace}/${vmi.name}`, vmi]));
  const made: Machine[] = [];
  for (const vm of vms) {
    const key = `${vm.namespace}/${vm.name}`;
    made.push(machine(key, vm, runs.get(key) ?? null));
    runs.delete(key);
  }
  for (const [key, vmi] of runs) made.push(machine(key, null, vmi));
  return made;
}
function machine(key: string, vm: Row | null, vmi: Row | null): Machine {
  const about = (vm ?? vmi)!;
  let status: string = vm ? vm.status : vmi!.phase;
  if (about.deleting) status = "Terminating";
  else if (vmi?.moving && vmi.phase === "Running") status = "Migrating";
  else if (vmi?.paused) status = "Paused";
  const made = {
    key, name: about.name, namespace: about.namespace, status: status || "Pending", tone: tone(status), vm, vmi,
    node: vmi?.node ?? "", target: vmi?.target ?? "", pool: vmi?.pool ?? "", hypervisor: (vmi ?? about).hypervisor || "",
    ip: vmi?.ip ?? "", cpus: (vmi ?? about).cpus, memory: (vmi ?? about).memory, created: about.created, outdated: !!vmi?.outdated, text: "",
  };
  made.text = [key, made.status, made.node, made.pool, made.hypervisor, made.ip].join(" ").toLowerCase();
  return made;
}

const SAID: Record<string, [string, string]> = {
  Ready: ["The guest is ready.", "The guest is not ready."],
  AgentConnected: ["The guest's agent answers.", "The guest has no agent that answers."],
  LiveMigratable: ["It can move to another node while it runs.", "It cannot move while it runs."],
  Paused: ["Its CPUs are stopped.", ""],
  PodScheduled: ["A node was found for it.", "No node was found for it yet."],
  DataVolumesReady: ["Its volumes are there.", "Its volumes are not there yet."],
  StorageLiveMigratable: ["Its disks can move, too.", "Its disks cannot move."],
  Synchronized: ["Its node does what its spec says.", "Its node could not do what its spec says."],
  Initialized: ["", "It is being prepared."],
  RestartRequired: ["A change waits for the next restart.", ""],
  Failure: ["Something failed.", ""],
  Provisioning: ["It is being provisioned.", ""],
  MigrationRequired: ["It has to move to take up a change.", ""],
  EvictionRequested: ["It is to leave its node.", ""],
};
export function conditionWords(condition: { type: string; status: string; message?: string; reason?: string }): string {
  const yes = condition.status === "True";
  const said = SAID[condition.type];
  const words = said ? said[yes ? 0 : 1] : `${condition.type}: ${yes ? "yes" : "no"}.`;
  return [words, condition.message].filter(Boolean).join(" ");
}
export function conditionTone(condition: { type: string; status: string }): Tone {
  const yes = condition.status === "True";
  if (["Paused", "RestartRequired", "MigrationRequired", "EvictionRequested"].includes(condition.type)) return yes ? "held" : "off";
  if (condition.type === "Failure") return yes ? "bad" : "off";
  if (["Ready", "PodScheduled", "Synchronized", "DataVolumesReady"].includes(condition.type)) return yes ? "good" : "bad";
  return yes ? "good" : "off";
}
