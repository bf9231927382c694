// Functions of sequences.hpp that steps call.
#include "../sequences.hpp"

#include <iterator>

#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
constexpr Function kFunctions[] = {
    function<&take_offsets<int32>>("take_offsets:int32"),
    function<&take_offsets<int64>>("take_offsets:int64"),
    function<&append_offsets>("append_offsets:"),
    ONERNN_MOVED(append),
    function<&add_offsets>("add_offsets:"),
    ONERNN_MOVED(join),
    function<&lengths<int32>>("lengths:int32"),
    function<&lengths<int64>>("lengths:int64"),
    ONERNN_MOVED(pad),
    ONERNN_INDEXED(unpad),
    function<&pool<float>>("pool:float32"),
    function<&pool<double>>("pool:float64"),
    function<&pool<int64>>("pool:int64"),
    function<&pool<int32>>("pool:int32"),
    ONERNN_MOVED(reverse_sentences),
    function<&sentence_softmax<float>>("sentence_softmax:float32"),
    function<&sentence_softmax<double>>("sentence_softmax:float64"),
    ONERNN_MOVED(context),
    ONERNN_MOVED(expand),
    function<&viterbi<float>>("viterbi:float32"),
    function<&viterbi<double>>("viterbi:float64"),
};
}  // namespace

Functions sequences() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
