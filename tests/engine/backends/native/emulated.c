/* Calls functions of the native operators for another process, which this one is not the processor of: see emulated.py.

   That process's memory is fetched, some pages at a time, to the same addresses, where a function reads it: arguments are
   passed as they are, whatever they point to. When the function returns, what it changed is sent back and all pages go. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define MAX_RUNS (1 << 14)
#define RUN_BYTES (16 * PAGE)

enum { FETCH, STORE, DONE };
struct report {
    int64_t kind, address, value; /* the length of what follows, or the result */
};
struct call {
    char name[32];
    int64_t threads, words[10];
    double number;
};
typedef int64_t function(
    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, double);

static struct run {
    char *at, *before; /* pages that were fetched together, and what they were */
    int64_t bytes;
} runs[MAX_RUNS];
static int run_count;
static pthread_mutex_t faulting = PTHREAD_MUTEX_INITIALIZER;
static int line;

/* The operators' memset, in place of libc's: that one clears with `dc zva`, after whose faults QEMU goes on at another
   instruction, so that bytes behind a fetched page stay what they were. */
void *memset(void *to, int byte, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++) {
        ((char *)to)[at] = byte;
        __asm__ volatile(""); /* otherwise the compiler makes a call of memset of it */
    }
    return to;
}

static void take(void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t some = read(line, (char *)to + done, bytes - done);
        if (some <= 0)
            _exit(1);
        done += some;
    }
}

static void give(int64_t kind, const void *address, int64_t value)
{
    const struct report report = {kind, (int64_t)address, value};
    if (write(line, &report, sizeof report) != sizeof report)
        _exit(1);
}

static void fetch(int signal, siginfo_t *fault, void *context)
{
    char *page = (char *)((uintptr_t)fault->si_addr & -PAGE);
    (void)signal, (void)context;
    pthread_mutex_lock(&faulting);
    int64_t bytes = RUN_BYTES; /* up to what is here already, which may have changed */
    for (const struct run *run = runs; run < runs + run_count; run++)
        if (page < run->at + run->bytes && run->at - page < bytes)
            bytes = run->at - page;
    if (bytes > 0) { /* otherwise another thread was first */
        char *both = mmap(0, 2 * RUN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        give(FETCH, page, bytes);
        take(&bytes, sizeof bytes);
        take(both, bytes);
        memcpy(both + bytes, both, bytes);
        if (run_count == MAX_RUNS || mremap(both, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, page) != page)
            _exit(2);
        runs[run_count++] = (struct run){page, both + bytes, bytes};
    }
    pthread_mutex_unlock(&faulting);
}

/* Sends the words of a run that have changed. */
static void store(const struct run *run)
{
    const int64_t *now = (const int64_t *)run->at, *old = (const int64_t *)run->before;
    for (long first = 0, end; first < run->bytes / 8; first = end) {
        for (end = first; end < run->bytes / 8 && now[end] != old[end]; end++)
            ;
        if (end > first) {
            give(STORE, now + first, (end - first) * 8);
            if (write(line, now + first, (end - first) * 8) != (end - first) * 8)
                _exit(1);
        }
        end += end == first;
    }
}

int main(int count, char **arguments)
{
    const struct sigaction action = {.sa_sigaction = fetch, .sa_flags = SA_SIGINFO};
    void *library = count == 3 ? dlopen(arguments[1], RTLD_NOW) : 0;
    if (!library)
        return 3;
    line = atoi(arguments[2]);
    sigaction(SIGSEGV, &action, 0);
    for (;;) {
        struct call call;
        take(&call, sizeof call);
        function *called = (function *)dlsym(library, call.name);
        const int64_t *w = call.words;
        omp_set_num_threads(call.threads);
        const int64_t result = called(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], call.number);
        for (; run_count; run_count--) {
            const struct run *run = &runs[run_count - 1];
            store(run);
            munmap(run->at, run->bytes);
            munmap(run->before, 2 * RUN_BYTES - run->bytes);
        }
        give(DONE, 0, result);
    }
}
