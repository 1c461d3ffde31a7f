package applier

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// packer encodes records, which all clusters of a fleet do with the same few
// compressors: one takes 800 KB.
type packer struct {
	writers sync.Pool // of [gzip.Writer]s
	readers sync.Pool // of [gzip.Reader]s
	texts   sync.Pool // of [bytes.Buffer]s
}

// pack encodes and compresses a record.
func (p *packer) pack(r Record) ([]byte, error) {
	z, _ := p.writers.Get().(*gzip.Writer)
	if z == nil {
		z = gzip.NewWriter(nil)
	}
	defer p.writers.Put(z)
	var b bytes.Buffer
	z.Reset(&b)
	if err := json.NewEncoder(z).Encode(r); err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress record: %w", err)
	}
	return b.Bytes(), nil
}

// unpack decodes a record of this format or an older one.
func (p *packer) unpack(data []byte, into *Record) error {
	plain, _ := p.texts.Get().(*bytes.Buffer)
	if plain == nil {
		plain = &bytes.Buffer{}
	}
	defer p.texts.Put(plain) // what is decoded from it has texts of its own
	if err := p.inflate(data, plain); err != nil {
		return err
	}
	// Numbers must come out as an API server's do: whole ones as int64.
	var u struct {
		*Record
		Objects []struct {
			RecordedObject
			Content  json.RawMessage `json:"content"`
			Intended bool            `json:"intended"` // of format 1
		} `json:"objects"`
	}
	u.Record = into
	if err := json.Unmarshal(plain.Bytes(), &u); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if into.Format < 1 || into.Format > recordFormat {
		return fmt.Errorf("the record has format %d, and this version of Keelson knows 1 to %d: upgrade Keelson", into.Format, recordFormat)
	}
	into.Format = recordFormat
	into.Objects = make([]RecordedObject, len(u.Objects))
	for i, o := range u.Objects {
		into.Objects[i] = o.RecordedObject
		content := &unstructured.Unstructured{}
		if err := content.UnmarshalJSON(o.Content); err != nil {
			return fmt.Errorf("decode %s: %w", o.ID, err)
		}
		into.Objects[i].Content = content.Object
		if o.Intended {
			into.Objects[i].Intent = IntentCreate
		}
	}
	return nil
}

// inflate decompresses a record.
func (p *packer) inflate(data []byte, into *bytes.Buffer) error {
	z, _ := p.readers.Get().(*gzip.Reader)
	if z == nil {
		z = &gzip.Reader{}
	}
	defer p.readers.Put(z)
	if err := z.Reset(bytes.NewReader(data)); err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	into.Reset()
	n, err := into.ReadFrom(io.LimitReader(z, recordLimit+1))
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	if n > recordLimit {
		return fmt.Errorf("unpacks to more than %d bytes", recordLimit)
	}
	return nil
}
