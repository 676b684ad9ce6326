#include "textflag.h"

#define SYS_clock_gettime 113
#define SECOND $1000000000

DATA ·shifted(SB)/8, $gettime<>(SB)
GLOBL ·shifted(SB), NOPTR, $8

// int gettime(clockid_t R0, struct timespec *R1), in C's calling convention: the runtime's thread may have any stack.
TEXT gettime<>(SB),NOSPLIT|NOFRAME,$0
	MOVW	R0, R7 // CLOCK_REALTIME is 0
	CBZW	R7, call
	MOVD	·next(SB), R2
	CBZ	R2, call
	JMP	(R2)
call:
	MOVD	$SYS_clock_gettime, R8
	SVC
	CBNZW	R7, done
	MOVD	·offset(SB), R2
	MOVD	(R2), R2
	MOVD	SECOND, R3
	SDIV	R3, R2, R4 // seconds
	MSUB	R4, R2, R3, R5 // the rest, with the offset's sign
	MOVD	0(R1), R6
	ADD	R4, R6
	MOVD	8(R1), R2
	ADD	R2, R5
	CMP	$0, R5
	BGE	notBefore
	ADD	R3, R5
	SUB	$1, R6
notBefore:
	CMP	R3, R5
	BLT	notAfter
	SUB	R3, R5
	ADD	$1, R6
notAfter:
	MOVD	R6, 0(R1)
	MOVD	R5, 8(R1)
done:
	RET
