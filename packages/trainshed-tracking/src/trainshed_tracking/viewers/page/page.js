// Changes the link behind the # for a mark in the path, and waits until TensorBoard serves.
"use strict";

const state = document.getElementById("state");
const lines = document.getElementById("lines");
const again = document.getElementById("again");

function fail(text) {
  document.body.dataset.state = "failed";
  state.textContent = text;
  again.hidden = false;
}

// Calls `heard` with each line of JSON of an answer.
async function eachLine(answer, heard) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    parts.filter(Boolean).forEach((part) => heard(JSON.parse(part)));
  }
}

async function open() {
  const link = new URLSearchParams(location.hash.slice(1));
  const wanted = { view: link.get("view") || "", key: link.get("key") || "" };
  delete document.body.dataset.state;
  again.hidden = true;
  lines.replaceChildren();
  state.textContent = "Opening…";
  let ended = false;
  try {
    const answer = await fetch("open", { method: "POST", body: JSON.stringify(wanted) });
    if (!answer.ok) {
      const refused = await answer.json();
      fail(refused.error.message);
      return;
    }
    await eachLine(answer, (message) => {
      if (message.line) {
        const line = document.createElement("li");
        line.textContent = message.line;
        lines.append(line);
      } else if (message.error) {
        ended = true;
        fail(message.error);
      } else if (message.path) {
        ended = true;
        location.replace(message.path);
      }
    });
    if (!ended) fail("The connection broke off.");
  } catch (failure) {
    fail(`The service does not answer: ${failure.message}`);
  }
}

again.addEventListener("click", open);
addEventListener("hashchange", open);
open();
