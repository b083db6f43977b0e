// Signs in: changes a token, or the code of a link, for a session, and has the browser keep that as it keeps HTTP
// credentials. They go to this host and port alone, until the browser is closed.
"use strict";

(() => {
  const form = document.querySelector("form");
  const fault = document.querySelector('[role="alert"]');
  const fail = (text) => { fault.textContent = text; fault.hidden = false; };

  // Browsers keep a name and password that a script gives for a request once the service has asked for them.
  const keep = (session) => new Promise((done) => {
    const request = new XMLHttpRequest();
    request.open("GET", "/signed-in", true, "session", session);
    request.setRequestHeader("x-trainshed-sign-in", "1");
    request.onloadend = () => done(request.status === 204);
    request.send();
  });

  const signIn = async () => {
    fault.hidden = true;
    try {
      const sent = { method: "POST", headers: { accept: "application/json" }, body: new URLSearchParams(new FormData(form)) };
      const answer = await fetch(form.action, sent), told = await answer.json();
      if (!answer.ok) fail(told.error.message);
      else if (told.session && !(await keep(told.session))) fail("This browser does not keep what signs it in: it sends no HTTP credentials.");
      else location.replace(told.next);
    } catch {
      fail("The service does not answer. Try again.");
    }
  };

  form.addEventListener("submit", (e) => { e.preventDefault(); signIn(); });

  // A sign-in that this browser has begun at an issuer needs no question when it comes back.
  for (const link of document.querySelectorAll("[data-issuer]")) link.addEventListener("click", () => {
    const mark = crypto.getRandomValues(new Uint32Array(4)).join("-");
    sessionStorage.setItem("mark", mark);
    link.href += `&mark=${mark}`;
  });
  const begun = form.dataset.mark && form.dataset.mark === sessionStorage.getItem("mark");
  sessionStorage.removeItem("mark");
  if ("now" in form.dataset || begun) signIn();
})();
