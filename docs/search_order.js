/* Troubleshooting comes first, because it has the texts of messages; then other pages for readers, the
   reference, measurements and the changelog. */
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    /^generated\/(results\/|changelog)/.test(page) ? score / 8
    : /^generated\/(?!examples\/)/.test(page) ? score / 3
    : page === "troubleshooting" ? score * 3
    : score,
  // Below: as Sphinx has them.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
