package renderer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/fxamacker/cbor/v2"

	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer/sandbox"
)

// The two ends of a worker's pipes are one binary, so the protocol has no versions: a greeting,
// which is the worker's [sandbox.Limits], and its answer, then jobs and their answers, one at a
// time. Each is a frame: a length of 4 bytes, and CBOR. CBOR distinguishes integers and floats,
// which JSON does not, and takes half of JSON's time.

// welcome answers a greeting.
type welcome struct {
	Failed string // why the worker can't be confined; empty: it is
}

// answer is the result of a job: a target, or an error.
type answer struct {
	Target *Target
	Failed *failure
	Used   sandbox.Usage
}

// failure is an [Error] in transit: the parent adds the component, and the positions in
// meta-config.
type failure struct {
	At         yamlfile.Position
	Message    string
	Violations []violation
}

// maxFrame bounds a message from the other end, in bytes. A job holds a version, and an answer less
// than four times the text that it is made of.
func maxFrame(maxOutput int64) int64 { return 64<<20 + 4*maxOutput }

var errFrameTooLarge = errors.New("a message is too large")

// maxNested bounds the depth of objects. The API server's own limit is lower.
const maxNested = 10_000

func encoding() (cbor.EncMode, error) {
	return cbor.EncOptions{}.EncMode() //nolint:wrapcheck // only fails for options that contradict each other
}

func decoding() (cbor.DecMode, error) {
	return cbor.DecOptions{ //nolint:wrapcheck // as above
		DefaultMapType:   reflect.TypeFor[map[string]any](),
		IntDec:           cbor.IntDecConvertSignedOrFail,
		MaxNestedLevels:  maxNested,
		MaxArrayElements: 1 << 24,
		MaxMapPairs:      1 << 24,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		UTF8:             cbor.UTF8DecodeInvalid, // chart files and errors may hold any bytes
	}.DecMode()
}

// writeFrame writes one message.
func writeFrame(w io.Writer, message any) error {
	mode, err := encoding()
	if err != nil {
		return err
	}
	data, err := mode.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if int64(len(data)) > 1<<32-1 {
		return errFrameTooLarge
	}
	if err := binary.Write(w, binary.BigEndian, uint32(len(data))); err != nil {
		return fmt.Errorf("write a message: %w", err)
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write a message: %w", err)
	}
	return nil
}

// readFrame reads one message of at most limit bytes; io.EOF: there is none. It allocates memory
// for received bytes only, whatever the length says.
func readFrame(r io.Reader, limit int64, message any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err //nolint:wrapcheck // io.EOF is what the caller asks for
	}
	length := int64(binary.BigEndian.Uint32(head[:]))
	if length > limit {
		return fmt.Errorf("%w: %d bytes", errFrameTooLarge, length)
	}
	var data bytes.Buffer
	if n, err := io.CopyN(&data, r, length); err != nil {
		return fmt.Errorf("a message ends after %d of %d bytes: %w", n, length, err)
	}
	mode, err := decoding()
	if err != nil {
		return err
	}
	if err := mode.Unmarshal(data.Bytes(), message); err != nil {
		return fmt.Errorf("decode a message: %w", err)
	}
	return nil
}
