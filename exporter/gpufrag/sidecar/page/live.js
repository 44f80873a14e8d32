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
