// The console's own script: live updates, times in the reader's zone, copying, login links.
"use strict";

const SHORT = { hour: "2-digit", minute: "2-digit" };
const AXIS = { ...SHORT, hourCycle: "h23" };
const CLOCK = { ...SHORT, second: "2-digit" };
const DAY = { day: "numeric", month: "short" };
const FORMS = { long: { ...DAY, ...SHORT }, precise: { ...DAY, ...CLOCK }, clock: CLOCK };

function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    element.textContent = moment.toLocaleString(undefined, FORMS[element.dataset.form]);
    element.title = element.dateTime;
  }
  for (const element of root.querySelectorAll("svg title")) {
    element.textContent = element.textContent.replace(/\d{4}-\d\d-\d\dT\d\d:\d\dZ/, (time) =>
      new Date(time).toLocaleString(undefined, FORMS.long));
  }
  for (const element of root.querySelectorAll("text[data-time]")) {
    element.textContent = new Date(element.dataset.time).toLocaleTimeString(undefined, AXIS);
  }
}

function scrollToNewest(root) {
  for (const element of root.querySelectorAll(".scroll.newest")) element.scrollLeft = element.scrollWidth;
}

function copy(button) {
  const text = button.parentElement.querySelector("pre").textContent;
  navigator.clipboard.writeText(text).then(() => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// A login link carries its token behind "#": browsers do not send that part to the server.
function useLoginLink() {
  const form = document.getElementById("login");
  const token = location.hash.slice(1);
  if (!form || !token.startsWith("tacit_")) return;
  history.replaceState(null, "", location.pathname);
  form.elements.token.value = token;
  form.submit();
}

function listen() {
  const place = document.body.dataset.events;
  if (!place) return;
  const refresh = () => { if (!document.hidden) htmx.trigger(document.body, "released"); };
  new EventSource(place).addEventListener("released", refresh);
  document.addEventListener("visibilitychange", refresh);
}

document.addEventListener("DOMContentLoaded", () => {
  showTimes(document);
  scrollToNewest(document);
  useLoginLink();
  listen();
});
window.addEventListener("hashchange", useLoginLink);
// A part with something typed into it stays as it is.
document.addEventListener("htmx:beforeRequest", (event) => {
  const fields = [...event.detail.elt.querySelectorAll("input:not([type=hidden])")];
  const filled = (field) => (field.type === "checkbox" ? field.checked : field.value);
  const typing = fields.some((field) => filled(field) || field === document.activeElement);
  if (event.detail.elt.id === "live" && typing) event.preventDefault();
});
document.addEventListener("htmx:beforeSwap", (event) => {
  const places = [...event.detail.target.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  event.detail.target.dataset.scrolled = JSON.stringify(places);
});
document.addEventListener("htmx:afterSwap", (event) => {
  showTimes(event.detail.target);
  const places = JSON.parse(event.detail.target.dataset.scrolled || "[]");
  event.detail.target.querySelectorAll(".scroll").forEach((one, number) => {
    one.scrollLeft = places[number] ?? 0;
  });
});
document.addEventListener("click", (event) => {
  if (event.target.matches("button.copy")) copy(event.target);
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});
