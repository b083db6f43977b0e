// Signs in: changes a token, or the code of a link, for a session, and has the browser keep that as it keeps HTTP
// credentials. They go to this host and port alone, until the browser is closed.
"use strict";

const form = need("form", HTMLFormElement);

/** @param {string} text */
const showFault = (text) => {
  const fault = need('[role="alert"]', HTMLElement);
  fault.textContent = text;
  fault.hidden = !text;
};

/**
 * Have the browser keep a session, and return whether it does. Browsers keep a name and password that a script
 * gives for a request once the service has asked for them.
 * @param {string} session
 * @returns {Promise<boolean>}
 */
const keep = (session) =>
  new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("GET", "/signed-in", true, "session", session);
    request.setRequestHeader("x-trainshed-sign-in", "1");
    request.onloadend = () => resolve(request.status === 204);
    request.send();
  });

const signIn = async () => {
  showFault("");
  try {
    const body = new URLSearchParams();
    for (const [name, value] of new FormData(form)) body.append(name, String(value));
    const headers = { accept: "application/json" };
    const answer = await fetch(form.action, { method: "POST", headers, body });
    const { error, session, next } = await answer.json();
    if (!answer.ok) showFault(error.message);
    else if (!session || (await keep(session))) location.replace(next);
    else showFault("This browser cannot stay signed in because it does not send HTTP credentials.");
  } catch {
    showFault("The service does not respond. Try again.");
  }
};

form.addEventListener("submit", (event) => {
  event.preventDefault();
  signIn();
});

// A sign-in that this browser has begun at an issuer needs no question when it comes back.
for (const link of pickAll("[data-issuer]", HTMLAnchorElement))
  link.addEventListener("click", () => {
    const mark = crypto.getRandomValues(new Uint32Array(4)).join("-");
    sessionStorage.setItem("mark", mark);
    link.href += `&mark=${mark}`;
  });
const isBegun = form.dataset.mark && form.dataset.mark === sessionStorage.getItem("mark");
sessionStorage.removeItem("mark");
if ("now" in form.dataset || isBegun) signIn();
