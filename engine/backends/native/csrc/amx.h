/* Intel's AMX: eight registers ("tiles") of up to 16 rows of 64 bytes, and products of whole tiles.

   sums [m, n] fp32 += a [m, 2k] bf16 times b [k, n, 2] bf16: m <= 16 rows of a, n <= 16 columns, k <= 16 pairs of the
   depth. So `b` has two neighbours of the depth beside each other, and 16 columns of it are a row of 64 bytes. Rows of
   a tile in memory may be any distance apart. Whatever a row of `a` holds reaches that row of `sums` only, and its bits
   do not depend on how many rows there are. Sums of denormal numbers are 0. (Intel, Architecture Instruction Set
   Extensions Programming Reference, chapter 3.) Products of bytes have four neighbours of the depth where those of bf16
   have two, and whole sums: of signed bytes of a and unsigned ones of b here.

   A thread gives the tiles their shapes before it uses them, and releases them when it is done, since the kernel saves
   8 KiB more at each change of threads while they are in use. Others that share the thread, such as oneDNN, do the same
   for themselves: shapes do not outlive the call that set them. */

#ifndef AMX_H
#define AMX_H

#if defined __AMX_BF16__ && defined __AMX_TILE__ && defined __linux__
#define HAS_AMX
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What `ldtilecfg` reads; `palette` is 1. A row of sums or b has 4 bytes a column, one of a 2 bytes an element. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* Whether the kernel (Linux 5.16 and later) grants this process the use of tiles, which it is asked for once. It refuses if
   a thread's signal stack is too small. That the compiler targets AMX is not enough. */
static int amx_allowed;
static __attribute__((constructor)) void ask_for_amx(void)
{
    const long request_permission = 0x1023, tile_data = 18;
    amx_allowed = !syscall(SYS_arch_prctl, request_permission, tile_data);
}

/* Not the compiler's own intrinsics: GCC 12's do not say that they read what memory holds, nor all of the shapes. */
static inline void shape_tiles(const struct tile_shapes *shapes)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*shapes));
}
static inline void release_tiles(void) { __asm__ volatile("tilerelease"); }

/* Tiles are numbers 0 … 7, written as such. `stride` is the distance of rows in bytes. */
#define TILE_ZERO(TILE) __asm__ volatile("tilezero %%tmm" #TILE : :)
#define TILE_LOAD(TILE, FROM, STRIDE) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #TILE : : "r"((const void *)(FROM)), "r"((long)(STRIDE)) : "memory")
#define TILE_STORE(TILE, TO, STRIDE) \
    __asm__ volatile("tilestored %%tmm" #TILE ", (%0,%1,1)" : : "r"((void *)(TO)), "r"((long)(STRIDE)) : "memory")
#define TILE_ADD_BYTES(SUMS, A, B) __asm__ volatile("tdpbsud %%tmm" #B ", %%tmm" #A ", %%tmm" #SUMS : :)
#define TILE_ADD_PRODUCT(SUMS, A, B) __asm__ volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #SUMS : :)

#endif
#endif
