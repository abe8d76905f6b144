/* daemon/model/message.c */
#include "daemon/model/message.h"

#include <stdarg.h>
#include <stdio.h>

#include "daemon/model/model.h"

int model_refuse(char *message, int error, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (vsnprintf(message, MODEL_MESSAGE_MAX, format, args) < 0)
        message[0] = '\0';
    va_end(args);
    for (unsigned char *c = (unsigned char *)message; *c; c++)
        if (*c < 0x20 || *c > 0x7e)
            *c = '?';
    return error;
}
