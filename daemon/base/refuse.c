#include "daemon/base/refuse.h"

#include <stdarg.h>
#include <stdio.h>

int refuse(char *message, int error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (vsnprintf(message, REFUSE_MESSAGE_MAX, format, args) < 0)
        message[0] = 0;
    va_end(args);
    return error;
}
