// A question before something that cannot be undone.

import { useEffect, useRef } from "preact/hooks";

interface ConfirmProps {
  title: string;
  text: string;
  yes: string;
  onAnswer(confirmed: boolean): void;
}

export function Confirm({ title, text, yes, onAnswer }: ConfirmProps) {
  const node = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    node.current?.showModal();
  }, []);
  return (
    <dialog
      ref={node}
      aria-labelledby="confirm-title"
      onCancel={(event) => {
        event.preventDefault();
        onAnswer(false);
      }}
    >
      <h2 id="confirm-title">{title}</h2>
      <p>{text}</p>
      <div class="bar">
        <button type="button" class="btn" onClick={() => onAnswer(false)}>
          Keep
        </button>
        <button type="button" class="btn danger" onClick={() => onAnswer(true)}>
          {yes}
        </button>
      </div>
    </dialog>
  );
}
