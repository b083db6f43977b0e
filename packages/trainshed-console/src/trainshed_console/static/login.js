// Signs in: exchanges a token, or the code of a link, for a session. The browser stores the session like HTTP
// credentials. It sends them to this host and port only, until it is closed.
"use strict";

const form = need("form", HTMLFormElement);

/** @param {string} text */
const showFault = (text) => {
  const fault = need('[role="alert"]', HTMLElement);
  fault.textContent = text;
  fault.hidden = !text;
};

/**
 * Store a session in the browser, and return whether that succeeded. A browser stores the name and password of a
 * script's request after the service has requested credentials.
 * @param {string} session
 * @returns {Promise<boolean>}
 */
const storeSession = (session) =>
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
    else if (!session || (await storeSession(session))) location.replace(next);
    else showFault("This browser cannot stay signed in because it does not send HTTP credentials.");
  } catch {
    showFault("The service does not respond. Try again.");
  }
};

form.addEventListener("submit", (event) => {
  event.preventDefault();
  signIn();
});

// A sign-in at an issuer needs no confirmation if this browser started it (login CSRF).
for (const link of pickAll("[data-issuer]", HTMLAnchorElement))
  link.addEventListener("click", () => {
    const mark = crypto.getRandomValues(new Uint32Array(4)).join("-");
    sessionStorage.setItem("mark", mark);
    link.href += `&mark=${mark}`;
  });
const isOwnSignIn = form.dataset.mark && form.dataset.mark === sessionStorage.getItem("mark");
sessionStorage.removeItem("mark");
if ("now" in form.dataset || isOwnSignIn) signIn();
