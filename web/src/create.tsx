// A new VM from a form, with the YAML that it makes, what the cluster says to it, and where it would go.
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Obj, create, useRows } from "./api";
import { CheckedYaml, type Verdict } from "./checked";
import { poolsOf } from "./fleet";
import { explainError, go, limited, me, notify, scope, useShared } from "./shell";
import { useExplanation } from "./why";

const ADDRESSES = "docker://… or https://…";
const START = {
  name: "", namespace: "", source: "image", image: "", claim: "", url: "", storage: "10Gi", size: "own", instancetype: "", cpus: "1", memory: "512Mi",
  disks: [] as Disk[], network: "masquerade", networks: "", pool: "", hypervisor: "", cloudinit: "", key: "", start: true,
};
type Form = typeof START;
interface Disk { kind: "claim" | "blank" | "import" | "scratch"; from: string; size: string }
const KINDS: [Disk["kind"], string][] = [["claim", "a volume claim"], ["blank", "a new, empty volume"], ["import", "a new volume, imported"], ["scratch", "scratch, gone at each stop"]];

/** A volume that the VM brings along, filled from an image or empty. */
const brought = (name: string, size: string, url?: string): Obj => ({
  metadata: { name },
  spec: { source: url === undefined ? { blank: {} } : { [/^https?:/.test(url) ? "http" : "registry"]: { url } }, storage: { resources: { requests: { storage: size } } } },
});

/** Why the ssh key cannot be added to the user's own cloud-init. */
const keyClash = (form: Form): string => {
  const own = form.cloudinit.trim();
  if (!own || !form.key.trim()) return "";
  if (!/^#cloud-config\s*$/m.test(own.split("\n", 1)[0])) return "The ssh key is added to a #cloud-config only: yours is something else. Set the key there, or leave it out here.";
  return /^ssh_authorized_keys\s*:/m.test(own) ? "The cloud-init has ssh_authorized_keys of its own: add the key there, and leave it out here." : "";
};

export function manifest(form: Form, pools: Obj[]): Obj {
  const lxc = form.hypervisor === "lxc";
  const disks: Obj[] = [], volumes: Obj[] = [], filesystems: Obj[] = [], templates: Obj[] = [];
  const volume = (name: string, kind: string, from: string, size: string): Obj => {
    if (kind === "image") return { name, containerDisk: { image: from } };
    if (kind === "claim") return { name, persistentVolumeClaim: { claimName: from } };
    if (kind === "scratch") return { name, emptyDisk: { capacity: size } };
    templates.push(brought(`${form.name}-${name}`, size, kind === "import" ? from : undefined));
    return { name, dataVolume: { name: `${form.name}-${name}` } };
  };
  volumes.push(volume("root", form.source, { image: form.image, claim: form.claim, import: form.url }[form.source] ?? "", form.storage));
  if (lxc) filesystems.push({ name: "root", virtiofs: {} });
  else disks.push({ name: "root", disk: { bus: "virtio" } });
  form.disks.forEach((disk, at) => { disks.push({ name: `disk${at + 1}`, disk: { bus: "virtio" } }); volumes.push(volume(`disk${at + 1}`, disk.kind, disk.from, disk.size)); });
  let userData = form.cloudinit.trim();
  if (form.key.trim() && !keyClash(form)) userData = `${userData || "#cloud-config"}\nssh_authorized_keys:\n- ${form.key.trim()}`;
  if (userData) { disks.push({ name: "seed", disk: { bus: "virtio" } }); volumes.push({ name: "seed", cloudInitNoCloud: { userData: `${userData}\n` } }); }
  const pool: Obj | undefined = pools.find((each) => each.name === form.pool);
  const labels: Obj = pool?.selector?.vmLabels?.matchLabels ?? {}, device = pool?.selector?.deviceNames?.[0];
  const devices: Obj = { disks };
  if (lxc) Object.assign(devices, { autoattachGraphicsDevice: false, autoattachMemBalloon: false, filesystems });
  if (disks.length === 0) delete devices.disks;
  const more = form.networks.split(/[\s,]+/).filter(Boolean);
  const interfaces: Obj[] = more.map((_, at) => ({ name: `net${at + 1}`, bridge: {} })), networks: Obj[] = more.map((networkName, at) => ({ name: `net${at + 1}`, multus: { networkName } }));
  if (form.network === "none") devices.autoattachPodInterface = false;
  else { interfaces.unshift({ name: "default", [form.network]: {} }); networks.unshift({ name: "default", pod: {} }); }
  if (interfaces.length) devices.interfaces = interfaces;
  if (device) devices.hostDevices = [{ name: "hint", deviceName: device }];
  const domain: Obj = { ...(form.size === "own" ? { cpu: { cores: Number(form.cpus) || 1 }, memory: { guest: form.memory } } : {}), devices };
  const spec: Obj = { ...(form.hypervisor ? { hypervisor: form.hypervisor } : {}), domain };
  if (pool && !device && Object.keys(labels).length === 0) spec.nodeSelector = pool.nodeSelector;
  if (networks.length) spec.networks = networks;
  spec.volumes = volumes;
  return {
    apiVersion: "kubevirt.io/v1", kind: "VirtualMachine", metadata: { name: form.name, namespace: form.namespace },
    spec: {
      runStrategy: form.start ? "Always" : "Halted",
      ...(form.size === "type" ? { instancetype: { kind: "VirtualMachineClusterInstancetype", name: form.instancetype } } : {}),
      ...(templates.length ? { dataVolumeTemplates: templates } : {}),
      template: { ...(Object.keys(labels).length ? { metadata: { labels } } : {}), spec },
    },
  };
}

export function Create() {
  const shown = useShared(scope), who = useShared(me), some = useShared(limited);
  const [form, setForm] = useState<Form>({ ...START, namespace: shown[0] || who?.namespace || "default" });
  const [text, setText] = useState("");
  const [own, setOwn] = useState(false);
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const [busy, setBusy] = useState(false);
  const namespaces = useRows("namespaces", [""]), types = useRows("instancetypes", [""]), kubevirts = useRows("kubevirts", [""]);
  const claims = useRows("claims", [form.namespace || "default"]), attachments = useRows("networks", [form.namespace || "default"]);
  const kubevirt: Obj = kubevirts.rows[0]?.object ?? {};
  const pools: Obj[] = useMemo(() => { const named = new Set(poolsOf(kubevirt).map((p) => p.name)); return [...(kubevirt.spec?.virtHandlerPools ?? []), ...(kubevirt.spec?.additionalVirtHandlers ?? [])].filter((p: Obj) => named.has(p.name)); }, [kubevirts]);
  const hypervisors: string[] = (kubevirt.spec?.configuration?.hypervisors ?? []).map((h: Obj) => h.name);
  useEffect(() => {
    if (own) return;
    let wanted = true;
    import("./editor").then(({ stringify }) => wanted && setText(stringify(manifest(form, pools), { lineWidth: 0, aliasDuplicateObjects: false })));
    return () => { wanted = false; };
  }, [form, own, pools]);
  const { told } = useExplanation(verdict?.allowed ? { object: verdict.object } : null, "");
  const set = (field: keyof Form) => (event: any) => { setOwn(false); setForm({ ...form, [field]: event.currentTarget.type === "checkbox" ? event.currentTarget.checked : event.currentTarget.value }); };
  const disk = (at: number, change: Partial<Disk> | null) => { setOwn(false); setForm({ ...form, disks: form.disks.flatMap((each, i) => i !== at ? [each] : change ? [{ ...each, ...change }] : []) }); };
  const clash = keyClash(form);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!verdict?.allowed || busy || clash) return;
    setBusy(true);
    try {
      const made = await create(verdict.object!);
      notify(`${made.metadata.name} is created.`);
      go(`vm/${made.metadata.namespace}/${made.metadata.name}`);
    } catch (error) { notify(explainError(error), "bad"); setBusy(false); }
  };
  const chosen: [string, string][] = [["", "choose"], ...claims.rows.map((c): [string, string] => [c.name, `${c.name} ${c.size}`])];
  const options = (all: [string, string][]) => all.map(([value, word]) => <option key={value} value={value}>{word}</option>);
  const field = (name: keyof Form, label: string, more: Obj = {}) => <label><span>{label}</span><input name={name} value={form[name] as string} onInput={set(name)} autocomplete="off" spellcheck={false} {...more} /></label>;
  const select = (name: keyof Form, label: string, all: [string, string][]) => <label><span>{label}</span><select name={name} value={form[name] as string} onChange={set(name)}>{options(all)}</select></label>;
  const fits = told?.nodes?.filter((node: Obj) => node.fits).map((node: Obj) => node.name);
  return (
    <main class="full">
      <header class="page"><h1>Create a VM</h1></header>
      <div class="columns create">
        <form onSubmit={submit}>
          <div class="pair">
            {field("name", "Name", { autofocus: true, placeholder: "web-1" })}
            {!some && namespaces.rows.length ? select("namespace", "Namespace", namespaces.rows.map((n): [string, string] => [n.name, n.name]).sort()) : field("namespace", "Namespace")}
          </div>
          <div class="pair three">
            {select("source", "Boots from", [["image", "a container disk"], ["claim", "a volume claim"], ["import", "a new volume, imported"]])}
            {form.source === "image" ? field("image", "Image", { placeholder: "registry/image:tag" }) : form.source === "claim" ? select("claim", "Claim", chosen) : <>{field("url", "Image", { placeholder: ADDRESSES })}{field("storage", "Its size")}</>}
          </div>
          <div class="pair three">
            {select("size", "Size", [["own", "CPUs and memory"], ["type", "an instance type"]])}
            {form.size === "own" ? <>{field("cpus", "CPUs", { inputmode: "numeric" })}{field("memory", "Memory")}</> : select("instancetype", "Instance type", [["", "choose"], ...types.rows.map((t): [string, string] => [t.name, `${t.name} (${t.cpus} CPU, ${t.memory})`]).sort()])}
          </div>
          {form.disks.map((each, at) => (
            <div class="pair disk" key={at}>
              <label><span>Disk {at + 1}</span><select name={`disk-kind-${at}`} value={each.kind} onChange={(event) => disk(at, { kind: event.currentTarget.value as Disk["kind"], from: "" })}>{options(KINDS)}</select></label>
              {each.kind === "claim" && <label><span>Claim</span><select name={`disk-from-${at}`} value={each.from} onChange={(event) => disk(at, { from: event.currentTarget.value })}>{options(chosen)}</select></label>}
              {each.kind === "import" && <label><span>Image</span><input name={`disk-from-${at}`} value={each.from} onInput={(event) => disk(at, { from: event.currentTarget.value })} placeholder={ADDRESSES} spellcheck={false} /></label>}
              {each.kind !== "claim" && <label><span>Size</span><input name={`disk-size-${at}`} value={each.size} onInput={(event) => disk(at, { size: event.currentTarget.value })} /></label>}
              <button type="button" class="quiet" aria-label={`Without disk ${at + 1}`} onClick={() => disk(at, null)}>×</button>
            </div>
          ))}
          <div class="row"><button type="button" class="quiet" data-test="add-disk" onClick={() => { setOwn(false); setForm({ ...form, disks: [...form.disks, { kind: "blank", from: "", size: "10Gi" }] }); }}>+ another disk</button></div>
          <div class="pair">
            {select("network", "Network", [["masquerade", "pod network, behind the Pod's address"], ["bridge", "pod network, with its own address"], ["none", "none"]])}
            {field("networks", "Further networks", { placeholder: "names of definitions", list: "networks" })}
            <datalist id="networks">{attachments.rows.map((row) => <option key={row.uid} value={row.name} />)}</datalist>
          </div>
          <div class="pair">
            {select("pool", "Pool hint", [["", "none: as the rules say"], ...pools.map((p): [string, string] => [p.name, p.name])])}
            {select("hypervisor", "Hypervisor", [["", "the default"], ...hypervisors.map((h): [string, string] => [h, h])])}
          </div>
          <label><span>ssh key</span><input name="key" value={form.key} onInput={set("key")} placeholder="ssh-ed25519 …" /></label>
          <label><span>cloud-init</span><textarea name="cloudinit" rows={5} value={form.cloudinit} onInput={set("cloudinit")} placeholder="#cloud-config" spellcheck={false} /></label>
          {clash && <p class="hint bad" data-test="key-clash">{clash}</p>}
          <label class="check"><input type="checkbox" name="start" checked={form.start} onChange={set("start")} /><span>Start it at once, and keep it running</span></label>
          <div class="row">
            <button class="primary" type="submit" data-test="create" disabled={!verdict?.allowed || busy || !!clash}>Create</button>
            {own && <button type="button" class="quiet" onClick={() => setOwn(false)}>Back to what the form says</button>}
          </div>
          {told && <p class="hint" data-test="outlook">It would go to {told.pool ? <>pool <b>{told.pool}</b></> : "the primary pool"} with <b>{told.hypervisor}</b>{fits ? (fits.length ? <>: {fits.join(", ")}</> : <span class="bad">, but no node can take it</span>) : ""}.</p>}
        </form>
        <section class="yaml">{text && <CheckedYaml text={text} onText={(next) => { if (next !== text) { setOwn(true); setText(next); } }} fresh onVerdict={setVerdict} />}</section>
      </div>
    </main>
  );
}
