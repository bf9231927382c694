// The functions of sequences.hpp that a plan's steps call.
#include "../sequences.hpp"

#include <iterator>

#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
constexpr Function kFunctions[] = {
    function<&take_offsets<int32>, ByRule>("take_offsets:int32"),
    function<&take_offsets<int64>, ByRule>("take_offsets:int64"),
    function<&find_longest, ByRule>("find_longest:"),
    function<&append_offsets, ByRule>("append_offsets:"),
    ONERNN_MOVED(append, ByRule),
    function<&add_offsets, ByRule>("add_offsets:"),
    ONERNN_MOVED(join, ByRule),
    function<&lengths<int32>, ByRule>("lengths:int32"),
    function<&lengths<int64>, ByRule>("lengths:int64"),
    ONERNN_MOVED(pad, ByRule),
    ONERNN_INDEXED(unpad, ByRule),
    function<&pool<float>, ByRule>("pool:float32"),
    function<&pool<double>, ByRule>("pool:float64"),
    function<&pool<int64>, ByRule>("pool:int64"),
    function<&pool<int32>, ByRule>("pool:int32"),
    ONERNN_MOVED(reverse_sentences, ByRule),
    function<&sentence_softmax<float>, ByRule>("sentence_softmax:float32"),
    function<&sentence_softmax<double>, ByRule>("sentence_softmax:float64"),
    ONERNN_MOVED(context, ByRule),
    ONERNN_MOVED(expand, ByRule),
    function<&viterbi<float>, ByRule>("viterbi:float32"),
    function<&viterbi<double>, ByRule>("viterbi:float64"),
};
}  // namespace

Functions sequences() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
