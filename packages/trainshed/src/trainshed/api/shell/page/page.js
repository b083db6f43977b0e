// The page of one shell: exchanges the link in the address (after #) for a ticket, and connects a terminal by WebSocket.
"use strict";

(() => {
  const element = (id) => document.getElementById(id);
  const link = new URLSearchParams(location.hash.slice(1));
  const terminal = new Terminal({
    cursorBlink: true,
    fontFamily: 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace',
    fontSize: 14,
    scrollback: 10000,
    theme: { background: "#14171a", foreground: "#e4e6e8" },
  });
  const fit = new FitAddon.FitAddon();
  const encoder = new TextEncoder();
  let socket = null;
  let firstToken = link.get("token");

  // A ticket is valid once, so remove it from the address.
  if (firstToken) {
    link.delete("token");
    history.replaceState(null, "", `#${link}`);
  }

  terminal.loadAddon(fit);
  terminal.open(element("terminal"));

  function show(state, text) {
    document.body.dataset.state = state;
    element("state").textContent = text;
    element("again").hidden = state !== "closed" || !link.get("key");
  }

  function name(title) {
    element("title").textContent = title;
    document.title = `${title} · Trainshed`;
  }

  async function ticket() {
    if (firstToken) {
      const token = firstToken;
      firstToken = null;
      return token;
    }
    const answer = await fetch("ticket", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ job: link.get("job"), replica: link.get("replica"), key: link.get("key") }),
    });
    const opened = await answer.json();
    if (!answer.ok) throw new Error(opened.error.message);
    name(opened.title);
    return opened.token;
  }

  function size() {
    return { rows: terminal.rows, columns: terminal.cols };
  }

  function handle(message) {
    if (message.title) {
      name(message.title);
      show("open", "");
      terminal.focus();
    } else if (message.error) {
      show("closed", message.error);
    } else if ("exit" in message) {
      const ended = message.exit === null ? "The shell ended together with its replica." : `The shell ended (${message.exit}).`;
      show("closed", ended);
    }
  }

  async function open() {
    show("opening", "Connecting …");
    let token;
    try {
      token = await ticket();
    } catch (failure) {
      show("closed", failure.message);
      return;
    }
    fit.fit();
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const current = new WebSocket(`${scheme}//${location.host}/shell/connect`);
    current.binaryType = "arraybuffer";
    current.onopen = () => current.send(JSON.stringify({ token, ...size(), term: "xterm-256color" }));
    current.onmessage = ({ data }) => {
      if (typeof data === "string") handle(JSON.parse(data));
      else terminal.write(new Uint8Array(data));
    };
    current.onclose = () => {
      if (document.body.dataset.state !== "closed") show("closed", "The connection was lost. Open the shell again.");
      terminal.write("\r\n");
    };
    socket = current;
  }

  function send(data) {
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(data);
  }

  terminal.onData((text) => send(encoder.encode(text)));
  terminal.onBinary((text) => send(Uint8Array.from(text, (char) => char.charCodeAt(0))));
  terminal.onResize(({ rows, cols }) => send(JSON.stringify({ resize: [rows, cols] })));
  new ResizeObserver(() => fit.fit()).observe(element("terminal"));
  element("again").onclick = open;
  open();
  // Another link in the same tab differs only in its fragment.
  addEventListener("hashchange", () => location.reload());
})();
