// A YAML text with what the cluster says to it.
import { lazy, Suspense } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Obj, post } from "./api";
import type { Cause } from "./editor";
import { explainError } from "./shell";

const Editor = lazy(() => import("./editor"));

export interface Verdict { text: string; allowed: boolean; causes: Cause[]; warnings: string[]; object: Obj | null }

export function CheckedYaml({ text, onText, fresh, onVerdict }: { text: string; onText?: (text: string) => void; fresh: boolean; onVerdict: (verdict: Verdict | null) => void }) {
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const turn = useRef(0);
  useEffect(() => {
    const mine = ++turn.current;
    onVerdict(null);
    const timer = setTimeout(async () => {
      const { parse } = await import("./editor");
      const { object, problem } = parse(text);
      let found: Verdict;
      if (!object) found = { text, allowed: false, causes: [{ field: "", message: problem }], warnings: [], object: null };
      else {
        try { found = { text, object, ...(await post("/api/validate", { object, new: fresh })) }; }
        catch (error) { found = { text, allowed: false, causes: [{ field: "", message: explainError(error) }], warnings: [], object }; }
      }
      if (mine === turn.current) { setVerdict(found); onVerdict(found); }
    }, 300);
    return () => clearTimeout(timer);
  }, [text, fresh]);
  const current = verdict?.text === text ? verdict : null;
  return (
    <div class="checked">
      <Suspense fallback={<div class="editor loading">…</div>}>
        <Editor text={text} onText={onText} causes={current?.causes ?? []} readOnly={!onText} />
      </Suspense>
      <div class="verdict" role="status" data-test="verdict" data-allowed={current ? String(current.allowed) : "?"}>
        {!current && <span class="hint">Asking the cluster …</span>}
        {current?.allowed && <span class="good">The cluster would take it.</span>}
        {current?.causes.map((cause) => <p class="bad" key={cause.field + cause.message}>{cause.field && <code>{cause.field}</code>} {cause.message}</p>)}
        {current?.warnings.map((warning) => <p class="held" key={warning}>{warning}</p>)}
      </div>
    </div>
  );
}
