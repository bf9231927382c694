// Throws errors as Paddle's own exception type. Paddle reports their messages to the caller. Any
// other exception ends the process.
#ifndef ONERNN_PADDLE_FAILURES_HPP
#define ONERNN_PADDLE_FAILURES_HPP

#include <exception>
#include <sstream>
#include <string>

#include "paddle/phi/api/all.h"
#if ONERNN_PADDLE > 2
#include "paddle/common/enforce.h"
#else
#include "paddle/phi/core/enforce.h"
#endif

namespace onernn_paddle {

#if ONERNN_PADDLE > 2
using Failure = common::enforce::EnforceNotMet;
#else
using Failure = phi::enforce::EnforceNotMet;
#endif

[[noreturn]] inline void fail(const std::string& text) {
  PADDLE_THROW(phi::errors::InvalidArgument("%s", text));
}

template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream text;
  text << "onernn_rnn: ";
  (text << ... << parts);
  fail(text.str());
}

/// Throws the caught exception again, converted to Paddle's exception type.
[[noreturn]] inline void fail_again() try { throw; } catch (const Failure&) {
  throw;
} catch (const std::exception& error) {
  fail(std::string("onernn_rnn: ") + error.what());
}

}  // namespace onernn_paddle

#endif
