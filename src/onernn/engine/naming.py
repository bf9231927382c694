"""Names in C++: nothing of a model is read as code, because names come from here only."""

from __future__ import annotations

import re

# [lex.key] and [lex.digraph] of C++23, identifiers with a meaning of their own, and `register`.
_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue contract_assert decltype default delete do double dynamic_cast else enum
explicit export extern false final float for friend goto if import inline int long module mutable
namespace new noexcept not not_eq nullptr operator or or_eq override private protected public
register reinterpret_cast requires return short signed sizeof static static_assert static_cast
struct switch template this thread_local throw true try typedef typeid typename union unsigned
using virtual void volatile wchar_t while xor xor_eq
"""
# Standard macros in small letters, and those of Linux, windows.h and Qt that are met most.
_MACROS = """
alloca assert complex errno fpclassify imaginary isfinite isgreater isgreaterequal isinf isless
islessequal islessgreater isnan isnormal isunordered kill_dependency linux longjmp math_errhandling
noreturn offsetof setjmp signbit stderr stdin stdout unix va_arg va_copy va_end va_start
cdecl emit far foreach hyper interface major makedev max min minor near pascal signals slots small
"""
# Capitals belong to macros: EOF, NAN, M_PI, INT8_MAX, TRUE; I is complex.h's.
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]+|I|(M|L|P|PRI|SCN)_\w+|(PRI|SCN)[a-zA-Z]\w*")
# The header's own, and what those who call it like to say beside the names of values.
_OWN = """
Inputs Model N Outputs Sizes Status T W Weights arguments count detail file in infer load model most
onernn out reset run sizes status std step team weights
"""
RESERVED = frozenset(f"{_KEYWORDS} {_MACROS} {_OWN}".split())
"""What C++, its libraries or the header itself say already."""

# What C libraries or CMake have under such a name already, and people call a model.
_GLOBAL = """
abort abs accept access acos acosh alarm all asctime asin asinh atan atan2 atanh atexit atof
atoi atol atoll basename bind brk bsearch calloc cbrt ceil chdir chmod chown clean clearenv
clearerr clock clone close con connect copysign cos cosh ctime daylight detail difftime div drem
dup edit_cache environ erf erfc error exec execl execv exit exp exp10 exp2 expm1 fabs fclose
fdim feof ferror fflush ffs fgetc finite floor fma fmax fmin fmod fopen fork fprintf fputc fread
free frexp fscanf fseek ftell fwrite gamma getc getchar getenv getline getopt getpid gets gmtime
help hypot index initstate install isalnum isalpha isdigit islower isspace isupper j0 j1 jn kill
labs ldexp ldiv lgamma link listen llabs localtime log log10 log1p log2 logb lrint lround lseek
main malloc memchr memcmp memcpy memmove memset mktime modf nan nice nul open package pause
perror pipe popen pow preinstall printf prn putc putenv puts qsort raise rand random read
realloc rebuild_cache recv remainder remove rename rewind rindex rint round scalb scanf select
send setbuf setenv setstate signal significand sin sincos sinh sleep socket sprintf sqrt srand
srandom sscanf stat strcat strchr strcmp strcpy strdup strlen strsep strtok swab symlink sync
system tan tanh tempnam test tgamma time time_t times timezone tmpfile tmpnam tolower toupper
trunc tzname tzset umask ungetc unlink usleep utime vfork wait write y0 y1 yn
""".split()
_MOST = 80
"""Letters of a name: what stands behind them tells nobody more."""


def identifier(text: str) -> str:
    """A C++ name of letters, digits and single underscores between them.

    Different texts may give the same name.
    """
    made = re.sub(r"[^A-Za-z0-9]+", "_", text[: 4 * _MOST])[:_MOST].strip("_") or "value"
    taken = made[0].isdigit() or made in RESERVED or _CAPITALS.fullmatch(made)
    return f"v{made}" if taken else made


def namespace(text: str) -> str:
    """A C++ name for a whole model, its files and its program, made of a file's name."""
    made = re.sub(r"[^A-Za-z0-9]+", "_", text[: 4 * _MOST])[:_MOST].strip("_").lower()
    if not made or made[0].isdigit() or made in RESERVED.union(_GLOBAL):
        return f"model_{made}".rstrip("_")
    return made
