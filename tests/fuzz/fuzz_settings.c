/* Settings files of any bytes: no crash, a message for every refusal, and what was accepted is
 * within bounds. */
#include <stdlib.h>
#include <string.h>

#include "daemon/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct settings set;
    char message[SETTINGS_MESSAGE_MAX] = "", value[SETTINGS_TEXT_MAX];
    settings_init(&set);
    if (settings_text(&set, "fuzz", (const char *)data, size, NULL, message) && !message[0])
        abort();
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++) {
        settings_value(&set, i, value);
        struct settings again = set;
        if (settings_set(&again, settings_row(i)->name, value, SETTINGS_FILE, NULL, message))
            abort(); /* what a row holds is a value it would take */
    }
    return 0;
}
