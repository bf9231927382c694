/* Pages for readers stand in front of the reference, and that in front of decisions and measurements. */
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    /^generated\/(design|results)\//.test(page) ? score / 8
    : /^generated\/(?!examples\/)/.test(page) ? score / 3
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
