"use strict";
// Replaces the page's content by a fresh copy, unless it is hidden or text in it is selected.
const PERIOD_MS = 5000;
async function refresh() {
  const status = document.getElementById("status");
  if (document.hidden || !getSelection().isCollapsed) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error("status " + answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const id of ["time", "content"]) {
      document.getElementById(id).replaceChildren(...fresh.getElementById(id).childNodes);
    }
    status.textContent = "";
  } catch (error) {
    status.textContent = "Not updated: the sidecar does not answer (" + error.message + ").";
  }
}
setInterval(refresh, PERIOD_MS);

// Buttons of ranks, shown once the sidecar accepts the control token. The token stays in this page's memory.
const control = document.getElementById("control");
function ask(path, body) {
  const headers = { authorization: "Bearer " + document.getElementById("token").value };
  return fetch("v1/ranks" + path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), cache: "no-store" });
}
async function act(button) {
  const answer = document.getElementById("answer"), { action, process } = button.dataset;
  answer.textContent = button.textContent + ": waiting for the process…";
  try {
    const got = await ask("/" + action, { process });
    if (action === "record" && got.ok) {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await got.blob());
      link.download = "steps.pickle";
      link.click();
      answer.textContent = "recorded: steps.pickle";
      return;
    }
    const found = await got.json();
    answer.textContent = found.text;
    if (found.report) {
      const link = document.createElement("a");
      link.href = found.report;
      link.textContent = "open the report";
      answer.append(" ", link);
    }
  } catch (error) {
    answer.textContent = "no answer (" + error.message + ")";
  }
}
if (control) {
  control.hidden = false;
  document.getElementById("token").addEventListener("change", async () => {
    const refusal = await ask("").then(
      (got) => got.ok ? "" : got.status === 401 ? "the token is not valid" : "cannot check the token: status " + got.status,
      (error) => "cannot check the token: no answer (" + error.message + ")");
    document.body.classList.toggle("controls", !refusal);
    document.getElementById("answer").textContent = refusal;
  });
  document.addEventListener("click", (event) => { if (event.target.matches("button[data-action]")) act(event.target); });
}
