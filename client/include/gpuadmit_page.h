/*
 * The shared page of gpuadmit, version 1: what each engine and device can take now, read without a call.
 *
 * Header only, C99 with the __atomic builtins of GCC and Clang. Map it, keep the mapping, and ask:
 *
 *     struct gpuadmit_page *page = gpuadmit_page_open("/run/gpuadmit/gpuadmit.page");
 *     struct gpuadmit_engine engine;
 *     if (page && gpuadmit_page_engine(page, "vllm-8000", &engine) == 0 && engine.headroom_known)
 *         ... engine.classes[GPUADMIT_STANDARD].tokens_lower ...
 *
 * GPUADMIT_STALE: the daemon has stopped, hangs or was replaced; close the page and open it again.
 * Times are nanoseconds of CLOCK_MONOTONIC. UINT64_MAX: not known.
 */
#ifndef GPUADMIT_PAGE_H
#define GPUADMIT_PAGE_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define GPUADMIT_PAGE_VERSION 1
#define GPUADMIT_PAGE_ENGINES 64
#define GPUADMIT_PAGE_DEVICES 64
#define GPUADMIT_PAGE_TRIES 1000

/* Answers beside 0. */
#define GPUADMIT_STALE (-1)          /* the page must not be believed any more */
#define GPUADMIT_UNKNOWN_ENGINE (-2) /* no engine has that id */
#define GPUADMIT_BUSY (-3)           /* a write began or ended at every try */

enum { GPUADMIT_INTERACTIVE, GPUADMIT_STANDARD, GPUADMIT_BATCH };

struct gpuadmit_class_room {
    uint64_t blocks;       /* that can still be promised */
    uint64_t blocks_lower; /* with the error band subtracted */
    uint64_t tokens;
    uint64_t tokens_lower;
};

struct gpuadmit_engine {
    char id[128];            /* zeros behind its end; none in an unused slot */
    uint64_t state;          /* number of its gpuadmit.v1.EngineState; 2: ready */
    uint64_t headroom_known; /* 0: the classes' figures say nothing */
    uint64_t read_at_ns;     /* when the reading was made that headroom rests on */
    uint64_t written_at_ns;
    struct gpuadmit_class_room classes[3]; /* GPUADMIT_INTERACTIVE, GPUADMIT_STANDARD, GPUADMIT_BATCH */
    uint64_t reservations;                 /* held */
    uint64_t admitted;                     /* since the engine was found */
    uint64_t denied;                       /* likewise, but for callers' mistakes */
    uint64_t demand_permille;              /* asked of it against what it can do, 1000: as much */
    uint64_t reserved[11];
};

struct gpuadmit_device {
    char uuid[96];
    uint64_t free_bytes;
    uint64_t total_bytes;
    uint64_t read_at_ns;
    uint64_t reserved[8];
};

/* While the sequence is even the first copy is to be read, while it is odd the second. */
struct gpuadmit_engine_slot {
    uint64_t sequence;
    uint64_t copies[2][sizeof(struct gpuadmit_engine) / 8];
};

struct gpuadmit_device_slot {
    uint64_t sequence;
    uint64_t copies[2][sizeof(struct gpuadmit_device) / 8];
};

struct gpuadmit_page {
    char magic[8]; /* GPUADMIT */
    uint64_t version;
    uint64_t size_bytes;
    uint64_t epoch; /* in the reservation ids of the daemon that writes it */
    uint64_t heartbeat_ns;
    uint64_t max_age_ns; /* age of the heartbeat from which the page must not be believed */
    uint64_t closed;     /* 1: the daemon has stopped */
    uint64_t admitted;
    uint64_t denied;
    uint64_t reserved[7];
    struct gpuadmit_engine_slot engines[GPUADMIT_PAGE_ENGINES];
    struct gpuadmit_device_slot devices[GPUADMIT_PAGE_DEVICES];
};

/* The layout is the contract: 128 + 64 * 760 + 64 * 376 bytes. */
typedef char gpuadmit_engine_has_47_words[sizeof(struct gpuadmit_engine) == 47 * 8 ? 1 : -1];
typedef char gpuadmit_device_has_23_words[sizeof(struct gpuadmit_device) == 23 * 8 ? 1 : -1];
typedef char gpuadmit_page_has_72832_bytes[sizeof(struct gpuadmit_page) == 72832 ? 1 : -1];

/* Maps the page; NULL where there is none that may be read, or none of this version. */
static inline struct gpuadmit_page *gpuadmit_page_open(const char *path) {
    struct gpuadmit_page *page = NULL;
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &file) == 0 && file.st_size == (off_t)sizeof(*page)) {
        void *start = mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, fd, 0);
        page = start == MAP_FAILED ? NULL : (struct gpuadmit_page *)start;
    }
    close(fd);
    if (page && (memcmp(page->magic, "GPUADMIT", 8) != 0 || page->version != GPUADMIT_PAGE_VERSION)) {
        munmap(page, sizeof(*page));
        return NULL;
    }
    return page;
}

static inline void gpuadmit_page_close(struct gpuadmit_page *page) {
    munmap(page, sizeof(*page));
}

static inline uint64_t gpuadmit_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Whether the page may be believed. */
static inline int gpuadmit_page_fresh(const struct gpuadmit_page *page) {
    uint64_t beat = __atomic_load_n(&page->heartbeat_ns, __ATOMIC_RELAXED), now = gpuadmit_now_ns();
    uint64_t age = now > beat ? now - beat : 0;
    return age <= __atomic_load_n(&page->max_age_ns, __ATOMIC_RELAXED) &&
           __atomic_load_n(&page->closed, __ATOMIC_RELAXED) == 0;
}

/* Copies what was last written to a slot as a whole. */
static inline int gpuadmit_slot_read(const uint64_t *sequence, const uint64_t *copies, uint64_t *to, size_t count) {
    for (int attempt = 0; attempt < GPUADMIT_PAGE_TRIES; attempt++) {
        uint64_t before = __atomic_load_n(sequence, __ATOMIC_ACQUIRE);
        const uint64_t *words = before % 2 == 0 ? copies : copies + count;
        for (size_t word = 0; word < count; word++)
            to[word] = __atomic_load_n(&words[word], __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(sequence, __ATOMIC_RELAXED) == before)
            return 0;
    }
    return GPUADMIT_BUSY;
}

/* What the engine `id` can take now. 0, GPUADMIT_STALE, GPUADMIT_UNKNOWN_ENGINE or GPUADMIT_BUSY. */
static inline int gpuadmit_page_engine(const struct gpuadmit_page *page, const char *id,
                                       struct gpuadmit_engine *engine) {
    if (!gpuadmit_page_fresh(page))
        return GPUADMIT_STALE;
    for (int slot = 0; slot < GPUADMIT_PAGE_ENGINES; slot++) {
        uint64_t words[sizeof(*engine) / 8];
        const struct gpuadmit_engine_slot *from = &page->engines[slot];
        if (gpuadmit_slot_read(&from->sequence, &from->copies[0][0], words, sizeof(words) / 8) != 0)
            return GPUADMIT_BUSY;
        memcpy(engine, words, sizeof(*engine));
        if (engine->id[0] != 0 && strncmp(engine->id, id, sizeof(engine->id)) == 0)
            return 0;
    }
    return GPUADMIT_UNKNOWN_ENGINE;
}

#endif
