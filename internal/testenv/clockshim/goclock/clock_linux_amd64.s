#include "textflag.h"

#define SYS_clock_gettime 228
#define CLOCK_REALTIME 0
#define SECOND $1000000000

DATA ·shifted(SB)/8, $gettime<>(SB)
GLOBL ·shifted(SB), NOPTR, $8

// int gettime(clockid_t DI, struct timespec *SI), in C's calling convention: the runtime's thread may have any stack.
TEXT gettime<>(SB),NOSPLIT|NOFRAME,$0
	MOVQ	·next(SB), AX
	CMPL	DI, $CLOCK_REALTIME
	JEQ	call
	CMPQ	AX, $0
	JEQ	call
	JMP	AX
call:
	MOVL	$SYS_clock_gettime, AX
	SYSCALL // changes CX and R11
	CMPL	DI, $CLOCK_REALTIME
	JNE	done
	MOVQ	·offset(SB), CX
	MOVQ	(CX), AX
	CQO
	MOVQ	SECOND, CX
	IDIVQ	CX // AX: seconds, DX: the rest, with the offset's sign
	ADDQ	AX, 0(SI)
	ADDQ	8(SI), DX
	CMPQ	DX, $0
	JGE	notBefore
	ADDQ	CX, DX
	DECQ	0(SI)
notBefore:
	CMPQ	DX, CX
	JLT	notAfter
	SUBQ	CX, DX
	INCQ	0(SI)
notAfter:
	MOVQ	DX, 8(SI)
	XORL	AX, AX
done:
	RET
