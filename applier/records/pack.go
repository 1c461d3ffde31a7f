package records

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/jsonsize"
)

// keptText is the largest buffer that is kept for the next record.
const keptText = 4 << 20

// Packer encodes records. All clusters of a fleet share a few compressors: each takes 800 KB.
type Packer struct {
	writers sync.Pool // of [gzip.Writer]s
	readers sync.Pool // of [gzip.Reader]s
	texts   sync.Pool // of [bytes.Buffer]s
}

// pack encodes and compresses a record, and returns the memory that the record takes, in bytes.
func (p *Packer) pack(r Record) (packed []byte, size int, err error) {
	z, _ := p.writers.Get().(*gzip.Writer)
	if z == nil {
		z = gzip.NewWriter(nil)
	}
	defer p.writers.Put(z)
	var b bytes.Buffer
	z.Reset(&b)
	meter := recordMeter()
	if err := json.NewEncoder(io.MultiWriter(z, metered{&meter})).Encode(r); err != nil {
		return nil, 0, fmt.Errorf("encode record: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, 0, fmt.Errorf("compress record: %w", err)
	}
	return b.Bytes(), memoryOf(&r), nil
}

// recordMeter bounds records that are read, and records that are written: a larger one could not be
// read again.
func recordMeter() jsonsize.Meter {
	return jsonsize.Meter{MaxBytes: recordLimit, MaxValues: recordValues, Each: jsonsize.Never}
}

// metered counts the bytes and values that are written.
type metered struct{ *jsonsize.Meter }

func (m metered) Write(p []byte) (int, error) {
	if err := m.Count(p); err != nil {
		return 0, fmt.Errorf("it has %w, and Keelson reads no record that large: split the component", err)
	}
	return len(p), nil
}

// memoryOf estimates the bytes that a record takes in memory.
func memoryOf(r *Record) int {
	n := 0
	for i := range r.Objects {
		n += objectBytes + jsonsize.Memory(r.Objects[i].Content) + jsonsize.Memory(r.Objects[i].Was)
	}
	return n + objectBytes*(len(r.History)+len(r.Hooks))
}

// objectBytes is the memory that an object of a record takes besides its content.
const objectBytes = 300

// unpack decodes a record of this format or an older one, and returns the memory that the record
// takes, in bytes.
func (p *Packer) unpack(data []byte, into *Record) (size int, err error) {
	plain, _ := p.texts.Get().(*bytes.Buffer)
	if plain == nil {
		plain = &bytes.Buffer{}
	}
	defer func() {
		if plain.Cap() <= keptText {
			p.texts.Put(plain) // the decoded record shares no memory with it
		}
	}()
	if err := p.inflate(data, plain); err != nil {
		return 0, err
	}
	// Numbers must come out as an API server's do: whole ones as int64.
	var u struct {
		*Record
		Objects []struct {
			Object
			Content  json.RawMessage `json:"content"`
			Was      json.RawMessage `json:"was"`
			Intended bool            `json:"intended"` // of format 1
		} `json:"objects"`
	}
	u.Record = into
	if err := json.Unmarshal(plain.Bytes(), &u); err != nil {
		return 0, fmt.Errorf("decode: %w", err)
	}
	if into.Format < 1 || into.Format > recordFormat {
		return 0, fmt.Errorf("the record has format %d, and this version of Keelson knows 1 to %d: upgrade Keelson", into.Format, recordFormat)
	}
	into.Format = recordFormat
	into.Objects = make([]Object, len(u.Objects))
	for i, o := range u.Objects {
		into.Objects[i] = o.Object
		if into.Objects[i].Content, err = contentOf(o.ID, o.Content); err != nil {
			return 0, err
		}
		if len(o.Was) > 0 {
			if into.Objects[i].Was, err = contentOf(o.ID, o.Was); err != nil {
				return 0, err
			}
		}
		if o.Intended {
			into.Objects[i].Intent = IntentCreate
		}
	}
	return memoryOf(into), nil
}

// contentOf decodes an object of a record.
func contentOf(id differ.ID, data []byte) (map[string]any, error) {
	content := &unstructured.Unstructured{}
	if err := content.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("decode %s: %w", id, err)
	}
	return content.Object, nil
}

// inflate decompresses a record.
func (p *Packer) inflate(data []byte, into *bytes.Buffer) error {
	z, _ := p.readers.Get().(*gzip.Reader)
	if z == nil {
		z = &gzip.Reader{}
	}
	defer p.readers.Put(z)
	if err := z.Reset(bytes.NewReader(data)); err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	into.Reset()
	meter := recordMeter()
	if _, err := into.ReadFrom(io.TeeReader(z, metered{&meter})); err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	return nil
}
