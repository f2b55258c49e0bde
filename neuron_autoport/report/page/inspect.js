// The part of the address after # names a class, or a site of one: `LlamaMLP:s0`. Light up what is its.
"use strict";
function light() {
  const [name, key] = decodeURIComponent(location.hash.slice(1)).split(":");
  document.querySelectorAll(".lit").forEach((e) => e.classList.remove("lit"));
  const section = [...document.querySelectorAll("section.class")].find((s) => s.id === name);
  if (!section || !key) return;
  section.querySelectorAll(`.${CSS.escape(key)}, [data-key="${CSS.escape(key)}"]`)
    .forEach((e) => e.classList.add("lit"));
}
function filter(event) {
  const word = event.target.value.toLowerCase();
  document.querySelectorAll("#sites tbody tr").forEach((row) => {
    row.hidden = !row.textContent.toLowerCase().includes(word);
  });
}
addEventListener("hashchange", light);
document.getElementById("filter").addEventListener("input", filter);
light();
