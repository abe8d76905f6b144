/* tests/util/sim_operator.h - a scripted operator of the simulation, who loads other weights.
 *
 * Over a real connection: asks for memory, fills it, says what its checksum is. Some of its files are
 * torn, some are no weights, some still mapped; and now and then it hangs up in the middle. Each
 * answer must be the one that was due. */
#ifndef CB_TESTS_UTIL_SIM_OPERATOR_H
#define CB_TESTS_UTIL_SIM_OPERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim; /* tests/util/sim.h */

enum sim_operator_state {
    SIM_OPERATOR_RESTS, /* until wake_ns                              */
    SIM_OPERATOR_ASKED, /* for memory                                 */
    SIM_OPERATOR_LOADS, /* said that it is filled; until wake_ns, if it won't wait any longer */
    SIM_OPERATOR_OVER,
};

enum sim_file {
    SIM_FILE_GOOD,
    SIM_FILE_TORN,    /* its checksum is another                  */
    SIM_FILE_FOREIGN, /* no weights of this model                 */
    SIM_FILE_MAPPED,  /* could still be written to                */
    SIM_FILE_LEFT,    /* its operator goes before it is complete  */
    SIM_FILE_HURRIED, /* its operator goes while it is loaded     */
    SIM_FILES,
};

struct sim_operator {
    struct sim *sim;
    uint32_t idx;
    uint64_t random, wake_ns;
    enum sim_operator_state state;
    int sock, death; /* our ends; -1: not connected */
    int fd;          /* the memory, or -1 */
    uint32_t n_left; /* files it still wants to load */
    enum sim_file file;
    char text[32];
    size_t n_text;
    void *map; /* of the memory, for writing; NULL: none */
};

void sim_operator_init(struct sim_operator *o, struct sim *sim, uint32_t idx, uint64_t seed);
void sim_operator_fini(struct sim_operator *o); /* hangs up */

bool sim_operator_can_act(const struct sim_operator *o);
uint64_t sim_operator_next_ns(const struct sim_operator *o);
void sim_operator_act(struct sim_operator *o);

#endif
