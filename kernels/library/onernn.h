/* The C interface of the kernels' library. Python reads this file, too: declarations only. */

/* The checksum of this file as the library was built with it. */
uint32_t onernn_abi(void);

/* The instruction set that this library is compiled for: "v2", "avx2", ... */
const char *onernn_isa(void);

/* The best one that this CPU and operating system run; "" where not even v2. */
const char *onernn_cpu(void);
