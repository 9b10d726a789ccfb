"use strict";
(() => {
  const all = [...document.querySelectorAll("[data-k]")];
  const mark = (event) => {
    const at = event.target.closest?.("[data-k]");
    const key = at && !at.matches("details.kernel") ? at.dataset.k : "";
    document.body.classList.toggle("marking", Boolean(key));
    for (const one of all) one.classList.toggle("on", key !== "" && one.dataset.k === key);
  };
  document.addEventListener("mouseover", mark);
  document.addEventListener("focusin", mark);
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target?.matches("details")) {
      target.open = true;
      target.scrollIntoView();
      target.querySelector("summary").focus({ preventScroll: true });
    }
  };
  addEventListener("hashchange", open);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#k-']");
    if (link && link.getAttribute("href") === location.hash) open();
  });
  open();
})();
