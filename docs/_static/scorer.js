// Ranks the results of the search: what the index of a page names comes first, then pages whose title has every word of
// the query, guides before the reference, then classes and functions, then methods, of which many classes have the same.
const FOLDERS = { guides: 2, which_buffer: 2, get_started: 2, reference: -1, faq: -1, benchmarks: -6, CHANGELOG: -8, format: -8 };

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([docname, title, anchor, description, score, filename, kind]) => {
    if (kind === "object") return score - (/\.[A-Z]\w*$|^relive\.\w+$/.test(title) ? 2 : 10);
    if (kind === "index") return score / 2;
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().split(/[^\p{L}\p{N}]+/u).filter((word) => word);
    const page = title.split(" > ")[0].toLowerCase();
    const wholeWords = page.split(/[^\p{L}\p{N}]+/u);
    let bonus = 0;
    if (words.length > 0 && words.every((word) => page.includes(word))) bonus = 8;
    if (words.length > 0 && words.every((word) => wholeWords.includes(word))) bonus = 10;
    if (bonus > 0 && page.startsWith(words[0])) bonus += 1;
    return score + bonus + (FOLDERS[docname.split("/")[0]] || 0);
  },
};
