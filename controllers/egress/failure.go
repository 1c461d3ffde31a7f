package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// Failure describes why there was no answer within a time. It omits the address in errors of the
// network, which may be secret. It omits the response, which errors about malformed answers quote.
func Failure(err error, within time.Duration) string {
	var (
		denied    *DeniedError
		dns       *net.DNSError
		unknown   x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		verifying *tls.CertificateVerificationError
		number    syscall.Errno
		timeout   interface{ Timeout() bool }
	)
	switch {
	case errors.As(err, &denied):
		return denied.Problem
	case errors.As(err, &dns):
		return "its name can't be resolved"
	case errors.As(err, &hostname), errors.As(err, &unknown), errors.As(err, &invalid), errors.As(err, &verifying):
		return "its certificate can't be trusted"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("it takes longer than %s", within)
	case errors.Is(err, context.Canceled):
		return "this process ends"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "it closed the connection" // the kind of error depends on what was sent before
	case errors.As(err, &number):
		return number.Error()
	}
	return "the connection failed"
}
