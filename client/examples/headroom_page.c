/*
 * What an engine can take now, from the shared page: no call, no library.
 *
 *     cc -O2 -I client/include -o headroom_page client/examples/headroom_page.c
 *     ./headroom_page /run/gpuadmit/gpuadmit.page vllm-8000
 */
#include <inttypes.h>
#include <stdio.h>

#include "gpuadmit_page.h"

int main(int argc, char **argv) {
    static const char *const classes[] = {"interactive", "standard", "batch"};
    struct gpuadmit_engine engine;
    struct gpuadmit_page *page;
    int answer;

    if (argc != 3) {
        fprintf(stderr, "usage: %s PAGE ENGINE\n", argv[0]);
        return 2;
    }
    page = gpuadmit_page_open(argv[1]);
    if (!page) {
        fprintf(stderr, "%s: no page of version %d\n", argv[1], GPUADMIT_PAGE_VERSION);
        return 1;
    }
    answer = gpuadmit_page_engine(page, argv[2], &engine);
    if (answer != 0) {
        fprintf(stderr, "%s: %s\n", argv[2],
                answer == GPUADMIT_STALE            ? "the page is stale"
                : answer == GPUADMIT_UNKNOWN_ENGINE ? "no engine has this id"
                                                    : "the page is being written without a pause");
        return 1;
    }
    printf("state %" PRIu64 "\n", engine.state);
    for (int class = GPUADMIT_INTERACTIVE; class <= GPUADMIT_BATCH && engine.headroom_known; class ++) {
        const struct gpuadmit_class_room *room = &engine.classes[class];
        printf("%s %" PRIu64 " blocks %" PRIu64 " tokens at least %" PRIu64 "\n", classes[class], room->blocks,
               room->tokens, room->tokens_lower);
    }
    gpuadmit_page_close(page);
    return 0;
}
