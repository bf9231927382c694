/* Boxes that scroll sideways get the focus by Tab, so that the arrow keys scroll them. */
function focusScrollingBoxes() {
  for (const box of document.querySelectorAll(".table-wrapper, div.highlight, div.highlight pre")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", focusScrollingBoxes);
addEventListener("resize", focusScrollingBoxes);
