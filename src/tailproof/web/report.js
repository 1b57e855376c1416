"use strict";
const root = document.documentElement;
const controls = document.querySelector(".controls");

function speak(language) {
  root.lang = language;
  document.title = document.querySelector("title").dataset[language === "en" ? "en" : "zh"];
  for (const button of controls.querySelectorAll("[data-language]")) {
    button.setAttribute("aria-pressed", String(button.dataset.language === language));
  }
}

for (const button of controls.querySelectorAll("[data-language]")) {
  button.addEventListener("click", () => speak(button.dataset.language));
}

const dark = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click", () => {
  const now = root.dataset.theme || (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});

const copy = document.getElementById("copy");
if (copy) {
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    const command = document.getElementById("command-line");
    try {
      await navigator.clipboard.writeText(command.textContent);
      copy.replaceChildren(...document.getElementById("copied").content.cloneNode(true).childNodes);
    } catch {
      getSelection().selectAllChildren(command);
    }
  });
}

controls.hidden = false;
