// What a VM uses, as small charts. Metrics have no watch: they are asked for while the page is in sight.
import { useEffect, useState } from "preact/hooks";
import { get } from "./api";
import { bytes } from "./words";

type Point = { time: number; values: Record<string, number> };
const PERIOD = 10000, KEPT = 90;

export function Charts({ namespace, name, uid }: { namespace: string; name: string; uid: string }) {
  const [points, set] = useState<Point[]>([]);
  const [why, setWhy] = useState("");
  useEffect(() => {
    set([]);
    const ask = async () => {
      if (document.hidden) return;
      try {
        const answer = await get(`/api/figures?namespace=${namespace}&name=${name}`);
        setWhy(answer.why ?? "");
        if (answer.figures) set((old) => [...old.slice(-KEPT), { time: Date.now() / 1000, values: answer.figures }]);
      } catch { /* the VM may just have ended */ }
    };
    ask();
    const timer = setInterval(ask, PERIOD);
    return () => clearInterval(timer);
  }, [uid]);
  if (why) return <p class="hint">No charts: {why}.</p>;
  const rate = (key: string) => points.slice(1).map((point, i) => {
    const before = points[i], passed = point.time - before.time;
    return Math.max(0, ((point.values[key] ?? 0) - (before.values[key] ?? 0)) / passed);
  });
  const level = (key: string) => points.map((point) => point.values[key]).filter((value) => value !== undefined);
  return (
    <div class="charts">
      <Chart title="CPU" values={rate("cpu")} show={(v) => `${v.toFixed(2)} CPUs`} />
      <Chart title="Memory of the process" values={level("resident")} show={bytes} />
      <Chart title="Disks" values={rate("read").map((v, i) => v + rate("written")[i])} show={(v) => `${bytes(v)}/s`} />
      <Chart title="Network" values={rate("received").map((v, i) => v + rate("sent")[i])} show={(v) => `${bytes(v)}/s`} />
    </div>
  );
}

function Chart({ title, values, show }: { title: string; values: number[]; show: (value: number) => string }) {
  const most = Math.max(...values, 1e-9), width = 200, height = 44;
  const at = (value: number, i: number) => `${(i / Math.max(1, values.length - 1)) * width},${height - 2 - (value / most) * (height - 6)}`;
  const line = values.map(at).join(" ");
  const now = values.length ? show(values[values.length - 1]) : "–";
  return (
    <figure>
      <figcaption><span>{title}</span><b>{now}</b></figcaption>
      <svg viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={`${title}: ${now}`}>
        {values.length > 1 && <polygon points={`0,${height} ${line} ${width},${height}`} />}
        {values.length > 1 && <polyline points={line} />}
      </svg>
    </figure>
  );
}
