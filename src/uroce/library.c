/* liburoce.so: the public API; everything is in the device layer. */
#include "uroce/uroce.h"
