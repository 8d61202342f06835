// A question before something that cannot be undone.

import { useLayoutEffect, useRef } from "preact/hooks";

interface ConfirmProps {
  title: string;
  text: string;
  yes: string;
  onAnswer(confirmed: boolean): void;
}

export function Confirm({ title, text, yes, onAnswer }: ConfirmProps) {
  const node = useRef<HTMLDialogElement>(null);
  const isGone = useRef(false);
  // Before the next picture, so that no key goes to what is behind it. The dialog leaves the document with its answer,
  // and only a dialog that is closed gives back the focus.
  useLayoutEffect(() => {
    const dialog = node.current;
    dialog?.showModal();
    return () => {
      isGone.current = true;
      dialog?.close();
    };
  }, []);
  const keep = () => {
    if (!isGone.current) onAnswer(false);
  };
  return (
    <dialog
      ref={node}
      aria-labelledby="confirm-title"
      onCancel={(event) => {
        event.preventDefault();
        keep();
      }}
      // A browser that does not wait for the page any more, after Escape was pressed again, closes the dialog by itself.
      onClose={keep}
    >
      <h2 id="confirm-title">{title}</h2>
      <p>{text}</p>
      <div class="bar">
        <button type="button" class="btn" onClick={keep}>
          Keep
        </button>
        <button type="button" class="btn danger" onClick={() => onAnswer(true)}>
          {yes}
        </button>
      </div>
    </dialog>
  );
}
