// Why a VM is where it is: pool by pool, node by node.
import { useEffect, useState } from "preact/hooks";
import { type Obj, post } from "./api";
import { Dot, explainError } from "./shell";

export function useExplanation(question: Obj | null, version: unknown): { told: Obj | null; problem: string } {
  const [answer, set] = useState<{ told: Obj | null; problem: string }>({ told: null, problem: "" });
  const key = JSON.stringify(question);
  useEffect(() => {
    if (!question) return;
    let wanted = true;
    post("/api/explain", question).then(
      (told) => wanted && set({ told, problem: "" }),
      (error) => wanted && set({ told: null, problem: explainError(error) }),
    );
    return () => { wanted = false; };
  }, [key, version]);
  return answer;
}

export function Why({ question, version }: { question: Obj; version: unknown }) {
  const { told, problem } = useExplanation(question, version);
  if (problem) return <p class="bad">{problem}</p>;
  if (!told) return <p class="hint">…</p>;
  const fits = (told.nodes ?? []).filter((node: Obj) => node.fits);
  return (
    <section class="why" data-test="why">
      <p class="lead">
        {told.pool ? <>Pool <b>{told.pool}</b></> : <>No pool asks for it, so the <b>primary</b> handlers have it</>}, with <b>{told.hypervisor}</b> and the launcher <code>{told.image}</code>.
        {told.node && <> It runs on <b>{told.node}</b>.</>} {told.nodes && <>{fits.length} of {told.nodes.length} nodes can take it.</>}
      </p>
      {told.problem && <p class="bad">It cannot start: {told.problem}</p>}
      {told.pools.length > 0 && <h3>Pool by pool</h3>}
      <ol class="verdicts">
        {told.pools.map((pool: Obj) => (
          <li key={pool.name} class={pool.used ? "yes" : ""}>
            <Dot tone={pool.used ? "good" : pool.matched ? "held" : "off"} /><b>{pool.name}</b>
            <span>{pool.used ? `matched by ${pool.by}` : pool.matched ? "matches, but an earlier one wins" : "no"}</span><p>{pool.reason}</p>
          </li>
        ))}
      </ol>
      {told.unseen && <p class="hint">{told.unseen}</p>}
      {told.nodes && <h3>Node by node</h3>}
      <ol class="verdicts">
        {(told.nodes ?? []).map((node: Obj) => (
          <li key={node.name} class={node.fits ? "yes" : ""}>
            <Dot tone={node.fits ? "good" : "off"} /><b>{node.name}</b>
            <span>{node.name === told.node ? "runs here" : node.fits ? "fits" : "no"}</span>
            <p>{node.why.length ? node.why.join("; ") : `served by ${node.handler}`}</p>
          </li>
        ))}
      </ol>
    </section>
  );
}
