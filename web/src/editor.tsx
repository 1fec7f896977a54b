// YAML with marks where the API server would object, as one types.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "preact/hooks";
import { type Document, isMap, isScalar, isSeq, parseDocument } from "yaml";
import type { Obj } from "./api";
import { nonce } from "./nonce";

export { stringify } from "yaml";
export interface Cause { field: string; message: string }


const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], class: "y-key" },
  { tag: [tags.string, tags.content], class: "y-text" },
  { tag: [tags.number, tags.bool, tags.null], class: "y-value" },
  { tag: [tags.comment, tags.lineComment], class: "y-comment" },
  { tag: [tags.punctuation, tags.separator], class: "y-mark" },
]);

/** What the text says, or what is wrong with it. */
export function parse(text: string): { object: Obj | null; document: Document; problem: string } {
  const document = parseDocument(text, { prettyErrors: true });
  const problem = document.errors[0]?.message ?? "";
  const object = problem ? null : document.toJS({ maxAliasCount: 10 });
  const whole = object && typeof object === "object" && !Array.isArray(object);
  return { object: whole ? object : null, document, problem: problem || (whole ? "" : "This is not an object.") };
}

/** Where a field stands: the deepest part of its path that is there. */
function place(document: Document, field: string): [number, number] {
  let node: any = document.contents, range: [number, number] = [0, 0];
  const steps = field.replace(/\[(\d+)\]/g, ".$1").split(".").filter(Boolean);
  for (const step of steps) {
    let next: any, mark: any;
    if (isMap(node)) {
      const pair: any = node.items.find((item: any) => isScalar(item.key) && String(item.key.value) === step);
      next = pair?.value; mark = pair?.key;
    } else if (isSeq(node)) { next = node.items[Number(step)]; mark = next; }
    if (!mark?.range) break;
    range = [mark.range[0], mark.range[1]];
    node = next;
  }
  return range;
}

export default function Editor({ text, onText, causes, readOnly }: { text: string; onText?: (text: string) => void; causes: Cause[]; readOnly?: boolean }) {
  const box = useRef<HTMLDivElement>(null), view = useRef<EditorView | null>(null), tell = useRef(onText);
  tell.current = onText;
  useEffect(() => {
    view.current = new EditorView({
      parent: box.current!,
      state: EditorState.create({
        doc: text,
        extensions: [
          EditorView.cspNonce.of(nonce), lineNumbers(), history(), drawSelection(), highlightActiveLine(), indentUnit.of("  "), yaml(),
          syntaxHighlighting(colours), lintGutter(), keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
          EditorView.editable.of(!readOnly), EditorState.readOnly.of(!!readOnly), EditorView.contentAttributes.of({ "aria-label": "YAML" }),
          EditorView.updateListener.of((update) => { if (update.docChanged) tell.current?.(update.state.doc.toString()); }),
        ],
      }),
    });
    return () => view.current?.destroy();
  }, [readOnly]);
  useEffect(() => {
    const now = view.current!;
    const there = now.state.doc.toString();
    if (there !== text) now.dispatch({ changes: { from: 0, to: there.length, insert: text } });
  }, [text]);
  useEffect(() => {
    const now = view.current!, { document } = parse(text), length = now.state.doc.length;
    const marks: Diagnostic[] = causes.map((cause) => {
      const [from, to] = place(document, cause.field);
      return { from: Math.min(from, length), to: Math.min(to, length), severity: "error", message: cause.message };
    });
    now.dispatch(setDiagnostics(now.state, marks));
  }, [causes, text]);
  return <div class="editor" ref={box} />;
}
